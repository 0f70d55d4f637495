"""An average of the weights is not saved: after the resume it begins at the weights of that moment."""

import sys
from typing import Any

import torch
from accel import Accelerator, ProjectConfiguration
from accel.utils import set_seed
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

RIGHT = "--right" in sys.argv
accelerator = Accelerator(cpu=True, project_config=ProjectConfiguration("out", automatic_checkpoint_naming=True))
set_seed(0)
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader: Any = DataLoader(data, batch_size=8)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
average = AveragedModel(accelerator.unwrap_model(model), multi_avg_fn=get_ema_multi_avg_fn(0.9))  # type: ignore[no-untyped-call] # of torch
if RIGHT:
    accelerator.register_for_checkpointing(average=average)
accelerator.resume()
for _ in range(loader.iteration, 3):
    for step, (inputs, targets) in enumerate(loader):
        accelerator.backward((model(inputs) - targets).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(accelerator.unwrap_model(model))
        if step % 3 == 1:
            accelerator.save_state()
accelerator.save_model(average.module, "out/weights")
