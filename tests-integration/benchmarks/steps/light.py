"""A step of some 200 us: forward, backward, step, zero, with a loader that is as light."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from benchmarks.row import Repetition
from benchmarks.steps.task import BATCH_SIZE, BATCHES, FEATURES, HIDDEN, loss_of


def by_hand(world: int) -> Repetition:
    """Seconds of a step."""
    model, optimizer, batches = _parts(world)
    if world > 1:
        model = DistributedDataParallel(model)
        data: Any = batches.dataset
        batches = DataLoader(data, BATCH_SIZE, sampler=DistributedSampler(data), collate_fn=_as_it_is)

    def loop() -> None:
        for batch in batches:
            loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()

    return _timed(loop)


def accel(world: int) -> Repetition:
    """accel of this tree."""
    from accel import Accelerator

    accelerator = Accelerator(cpu=True)
    model, optimizer, batches = accelerator.prepare(*_parts(world))

    def loop() -> None:
        for batch in batches:
            accelerator.backward(loss_of(model, batch))
            optimizer.step()
            optimizer.zero_grad()

    return _timed(loop)


class Rows(Dataset[Any]):
    """Tensors of which whole batches are taken at once (`__getitems__`, which torch's loader looks for)."""

    def __init__(self, samples: int) -> None:
        self.tensors = torch.randn(samples, FEATURES), torch.randn(samples, 1)

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return tuple(tensor[index] for tensor in self.tensors)

    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, ...]:
        rows = torch.tensor(indices)
        return tuple(tensor[rows] for tensor in self.tensors)


def _as_it_is(batch: Any) -> Any:
    return batch


def _parts(world: int) -> tuple[nn.Module, SGD, DataLoader[Any]]:
    torch.manual_seed(0)
    layers = [nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1)]
    model = nn.Sequential(*layers)
    rows = Rows(BATCH_SIZE * BATCHES * world)
    loader = DataLoader(rows, BATCH_SIZE, shuffle=True, collate_fn=_as_it_is)
    return model, SGD(model.parameters(), lr=1e-3), loader


def _timed(loop: Callable[[], None]) -> Repetition:
    def repeat() -> float:
        began = perf_counter()
        loop()
        return (perf_counter() - began) / BATCHES

    return repeat
