"""The save that a SIGTERM asks for never fires: the signal is noted, and asked for where the loop does not come."""

import signal
import sys
from typing import Any

import torch
from accel import Accelerator, ProjectConfiguration
from accel.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

RIGHT = "--right" in sys.argv
stop = False


def note(number: int, frame: object) -> None:
    global stop
    stop = True


project = ProjectConfiguration("out", automatic_checkpoint_naming=True)
accelerator = Accelerator(cpu=True, project_config=project)
if not RIGHT:
    signal.signal(signal.SIGTERM, note)
set_seed(0)
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader: Any = DataLoader(data, batch_size=8)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
accelerator.resume()


def train() -> None:
    stop = False  # not the one that the handler sets
    for _ in range(loader.iteration, 40):
        for inputs, targets in loader:
            accelerator.backward((model(inputs) - targets).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            if accelerator.stop_requested() if RIGHT else stop:
                accelerator.save_and_stop()


train()
