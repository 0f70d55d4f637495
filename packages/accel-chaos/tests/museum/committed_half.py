"""A checkpoint is committed half: it is two files, and a kill between them leaves a new and an old."""

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
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
loader: Any = DataLoader(data, batch_size=8)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
folder, first = Path("out"), 0
if RIGHT:
    accelerator.resume()
    first = loader.iteration
elif (folder / "optimizer.pt").exists():
    accelerator.unwrap_model(model).load_state_dict(torch.load(folder / "model.pt"))
    optimizer.load_state_dict(torch.load(folder / "optimizer.pt"))
    first = int((folder / "epoch.txt").read_text())
for epoch in range(first, 4):
    for inputs, targets in loader:
        accelerator.backward((model(inputs) - targets).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    if RIGHT:
        accelerator.save_state()
    elif accelerator.is_main_process:
        folder.mkdir(exist_ok=True)
        torch.save(accelerator.unwrap_model(model).state_dict(), folder / "model.pt")
        (folder / "epoch.txt").write_text(str(epoch + 1))
        torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    accelerator.wait_for_everyone()
