"""What is trained: a tiny model, so that what a library adds to a step shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

BATCH_SIZE, FEATURES, HIDDEN, MAX_NORM = 32, 16, 64, 1.0
#: micro-batches of a repetition: a whole number of windows of 4
BATCHES = 64


@dataclass(frozen=True, slots=True)
class Task:
    """How the model is trained."""

    world: int = 1
    every: int = 1
    precision: str = "no"


@dataclass(frozen=True, slots=True)
class Parts:
    """What a loop needs, as a script makes it."""

    model: nn.Module
    optimizer: Optimizer
    scheduler: LambdaLR
    loader: DataLoader[Any]


def parts(world: int, *, sharded: bool = False) -> Parts:
    """New ones; the loader has a pass of BATCHES batches for each rank, as its share already on request."""
    torch.manual_seed(0)
    layers = [nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1)]
    model = nn.Sequential(*layers)
    optimizer = AdamW(model.parameters(), lr=1e-3)
    samples = BATCHES * BATCH_SIZE * world
    data = TensorDataset(torch.randn(samples, FEATURES), torch.randn(samples, 1))
    if sharded and world > 1:
        loader = DataLoader(data, BATCH_SIZE, sampler=DistributedSampler(data, shuffle=True))
    else:
        loader = DataLoader(data, BATCH_SIZE, shuffle=True, generator=torch.Generator().manual_seed(0))
    return Parts(model, optimizer, LambdaLR(optimizer, lambda step: 1 / (1 + step / 1000)), loader)


def loss_of(model: nn.Module, batch: list[Tensor]) -> Tensor:
    """The loss that every contestant computes."""
    inputs, targets = batch
    return nn.functional.mse_loss(model(inputs), targets)
