"""The loop that a careful person writes by hand, for one process or DistributedDataParallel, and no more."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.row import Repetition
from benchmarks.steps.task import BATCHES, MAX_NORM, Task, loss_of, parts


def by_hand(task: Task) -> Repetition:
    """Seconds of a micro-batch."""
    mine = parts(task.world, sharded=True)
    model: Any = DistributedDataParallel(mine.model) if task.world > 1 else mine.model
    optimizer, scheduler, loader, every = mine.optimizer, mine.scheduler, mine.loader, task.every
    parameters = list(model.parameters())
    half = task.precision == "bf16"

    def micro_batch(batch: Any) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16) if half else nullcontext():
            loss = loss_of(model, batch)
        (loss / every if every > 1 else loss).backward()  # type: ignore[no-untyped-call]

    def repeat() -> float:
        began = perf_counter()
        for number, batch in enumerate(loader, start=1):
            due = number % every == 0
            home: AbstractContextManager[Any] = model.no_sync() if task.world > 1 and not due else nullcontext()
            with home:
                micro_batch(batch)
            if due:
                nn.utils.clip_grad_norm_(parameters, MAX_NORM)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        return (perf_counter() - began) / BATCHES

    return repeat
