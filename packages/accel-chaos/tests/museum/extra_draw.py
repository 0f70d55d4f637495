"""Random numbers are off by one draw: a number is drawn after the resume, and dropout goes on from the next."""

import sys
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
model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader: Any = DataLoader(data, batch_size=8)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
if RIGHT:
    accelerator.print(f"run {torch.randint(1000, ()).item()}")
    accelerator.resume()
else:
    accelerator.resume()
    accelerator.print(f"run {torch.randint(1000, ()).item()}")
for _ in range(loader.iteration, 3):
    for step, (inputs, targets) in enumerate(loader):
        accelerator.backward((model(inputs) - targets).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        if step % 3 == 1:
            accelerator.save_state()
