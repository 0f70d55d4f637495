"""A training script of many kinds, and what `accel verify` says of it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import accel
import pytest
import torch
from accel import GradientAccumulationPlugin, GradScalerKwargs, PartialState
from accel_state import release
from accel_testing import MakePool
from accel_verify.runner import RunComparison, compare, record
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

Replacement = tuple[Any, dict[str, Any]]

STEPS = 4


@dataclass(frozen=True)
class Case:
    """One training script."""

    ranks: int = 2
    accumulation: int = 2
    samples: int = 96
    epochs: int = 5
    precision: str = "no"
    scale: float = 65536.0
    clip: float | None = None
    weights: bool = False
    shuffle: bool = False
    split: bool = False
    drop_last: bool = False
    zero_first: bool = False
    prepared_schedule: bool = True
    once: bool = False
    at_epoch_end: str = "flush"
    dtype: torch.dtype = torch.float32


@pytest.fixture(autouse=True)
def _released() -> Iterator[None]:
    """The next test makes its own run, whatever this one made."""
    yield
    release()


def model_of(case: Case) -> nn.Module:
    torch.manual_seed(3)
    kept = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 4))
    return kept.to(case.dtype)


def script(case: Case) -> None:
    """What a user writes."""
    accelerator = accel.Accelerator(
        cpu=True,
        mixed_precision=case.precision,
        split_batches=case.split,
        scheduler_once_per_step=case.once,
        kwargs_handlers=[GradScalerKwargs(init_scale=case.scale)],
        gradient_accumulation_plugin=GradientAccumulationPlugin(case.accumulation, at_epoch_end=case.at_epoch_end),
    )
    model = model_of(case)
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(case.samples, 8, generator=generator, dtype=case.dtype)
    data = TensorDataset(inputs, torch.randint(4, (case.samples,), generator=generator))
    optimizer = AdamW(model.parameters(), lr=0.05)
    loader = DataLoader(data, batch_size=4, shuffle=case.shuffle, drop_last=case.drop_last)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    schedule = LambdaLR(optimizer, lambda step: 1 / (1 + step))
    if case.prepared_schedule:
        schedule = accelerator.prepare(schedule)
    for _ in range(case.epochs):
        model.train()
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                if case.zero_first:
                    optimizer.zero_grad()
                losses = nn.functional.cross_entropy(model(inputs), targets, reduction="none")
                if case.weights:
                    counts = (targets != 0).to(losses.dtype)
                    accelerator.backward((losses * counts).sum(), weight=counts.sum())
                else:
                    accelerator.backward(losses.mean())
                if case.clip is not None and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), case.clip)
                optimizer.step()
                if case.prepared_schedule or accelerator.sync_gradients:
                    schedule.step()
                if not case.zero_first:
                    optimizer.zero_grad()


def as_configured(case: Case, folder: Path, mistake: Callable[[], Replacement] | None) -> None:
    rank = PartialState(cpu=True).process_index
    owner, names = (accel, {}) if mistake is None else mistake()
    with ExitStack() as stack:
        for name, value in names.items():
            stack.enter_context(patch.object(owner, name, value))
        record(lambda: script(case), folder, rank, STEPS)


@pytest.fixture
def verified(world: MakePool, tmp_path: Path) -> Callable[..., RunComparison]:
    """What `accel verify` says of a script in which the run as configured makes a mistake, or none."""

    def verify(mistake: Callable[[], Replacement] | None = None, **options: Any) -> RunComparison:
        case = Case(**options)
        world(case.ranks).run(as_configured, case, tmp_path, mistake)
        return compare(lambda: script(replace(case, precision="no")), tmp_path, STEPS)

    return verify
