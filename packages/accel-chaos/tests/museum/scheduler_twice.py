"""A scheduler is stepped twice: it is loaded, and then run forward to the step at which training goes on."""

import sys
from typing import Any

import torch
from accel import Accelerator, ProjectConfiguration
from accel.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

RIGHT = "--right" in sys.argv
accelerator = Accelerator(
    cpu=True,
    scheduler_once_per_step=True,
    project_config=ProjectConfiguration("out", automatic_checkpoint_naming=True),
)
set_seed(0)
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
loader: Any = DataLoader(data, batch_size=8)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
if accelerator.resume() is not None and not RIGHT:
    for _ in range(loader.iteration * len(loader) + 2):
        scheduler.step()
for _ in range(loader.iteration, 3):
    for step, (inputs, targets) in enumerate(loader):
        accelerator.backward((model(inputs) - targets).square().mean())
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if step == 1:
            accelerator.save_state()
