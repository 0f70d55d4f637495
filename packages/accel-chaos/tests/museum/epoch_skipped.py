"""An epoch is skipped: a checkpoint from inside of an epoch resumes with the next one."""

import sys
from pathlib import Path
from typing import Any

import torch
from accel import Accelerator, ProjectConfiguration
from accel.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

RIGHT = "--right" in sys.argv
accelerator = Accelerator(cpu=True, project_config=ProjectConfiguration("out", automatic_checkpoint_naming=True))
set_seed(0)
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
order = torch.Generator()
loader: Any = DataLoader(data, batch_size=8, shuffle=True, generator=order)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
saved, first = Path("model.pt"), 0
if RIGHT:
    accelerator.resume()
    first = loader.iteration
elif saved.exists():
    state = torch.load(saved)
    accelerator.unwrap_model(model).load_state_dict(state["model"])
    first = state["epoch"] + 1  # the rest of that epoch was not trained
for epoch in range(first, 3):
    if not RIGHT:
        order.manual_seed(epoch)
    for step, (inputs, targets) in enumerate(loader):
        accelerator.backward((model(inputs) - targets).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        if step % 3 == 1:
            if RIGHT:
                accelerator.save_state()
            elif accelerator.is_main_process:
                accelerator.save({"model": accelerator.unwrap_model(model).state_dict(), "epoch": epoch}, saved)
