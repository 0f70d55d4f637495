"""The loss scale is forgotten: it begins again at its first value."""

import sys
from pathlib import Path
from typing import Any

import torch
from accel import Accelerator, GradScalerKwargs, ProjectConfiguration
from accel.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

RIGHT = "--right" in sys.argv
accelerator = Accelerator(
    cpu=True,
    mixed_precision="fp16",
    project_config=ProjectConfiguration("out", automatic_checkpoint_naming=True),
    kwargs_handlers=[GradScalerKwargs(init_scale=64.0, growth_interval=3)],
)
set_seed(0)
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader: Any = DataLoader(data, batch_size=8)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
saved, first = Path("model.pt"), 0
if RIGHT:
    accelerator.resume()
    first = loader.iteration
elif saved.exists():
    state = torch.load(saved)
    accelerator.unwrap_model(model).load_state_dict(state["model"])
    first = state["epoch"]
for epoch in range(first, 3):
    for inputs, targets in loader:
        accelerator.backward((model(inputs) - targets).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    if RIGHT:
        accelerator.save_state()
    elif accelerator.is_main_process:
        accelerator.save({"model": accelerator.unwrap_model(model).state_dict(), "epoch": epoch + 1}, saved)
    accelerator.wait_for_everyone()
