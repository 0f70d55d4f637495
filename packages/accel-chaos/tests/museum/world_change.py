"""Samples are lost when the number of processes changes: the place in the data is counted in batches of a process."""

import sys
from pathlib import Path
from typing import Any

import torch
from accel import Accelerator, ProjectConfiguration, skip_first_batches
from accel.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

RIGHT = "--right" in sys.argv
project = ProjectConfiguration("out", automatic_checkpoint_naming=True, stop_signals=("SIGTERM",))
accelerator = Accelerator(cpu=True, project_config=project)
set_seed(0)
batch = 8 // accelerator.num_processes
data = TensorDataset(torch.randn(96, 4), torch.randn(96, 1))
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model, optimizer = accelerator.prepare(model, optimizer)
loader: Any = DataLoader(data, batch_size=batch if RIGHT else 4)
loader = accelerator.prepare(loader) if RIGHT else accelerator.prepare_data_loader(loader)
place, seen = Path("out/seen.txt"), 0
if RIGHT:
    accelerator.resume()
else:
    if place.exists():
        accelerator.unwrap_model(model).load_state_dict(torch.load("out/model.pt"))
        seen = int(place.read_text())
    loader = skip_first_batches(loader, seen)
for inputs, targets in loader:
    accelerator.backward((model(inputs) - targets).square().mean())
    optimizer.step()
    optimizer.zero_grad()
    seen += 1
    if accelerator.stop_requested():
        if RIGHT:
            accelerator.save_and_stop()
        if accelerator.is_main_process:
            place.parent.mkdir(exist_ok=True)
            torch.save(accelerator.unwrap_model(model).state_dict(), "out/model.pt")
            place.write_text(str(seen))
        accelerator.wait_for_everyone()
        sys.exit(75)
