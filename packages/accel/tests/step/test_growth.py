"""T34, A5: creating, training and dropping again and again leaves nothing behind."""

import gc
import os
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from accel import Accelerator
from accel_amp.step_hook import call_before_steps
from accel_state import release
from accel_testing import MakePool
from torch import nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

WARM_UP = 5
# Weights, gradients and two moments come to 4 MB: a cycle that keeps one model grows by more than is allowed.
WIDTH = 512
MEGABYTE = 2**20


class Held(NamedTuple):
    """What a process has of the system, and its objects but for tensors, of which transports keep the newest 64."""

    memory: int
    descriptors: int
    files: int
    threads: int
    objects: int


def held() -> Held:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    descriptors = len(os.listdir("/proc/self/fd"))
    objects = sum(not isinstance(one, torch.Tensor) for one in gc.get_objects())
    files = len(os.listdir(tempfile.gettempdir()))
    return Held(pages * os.sysconf("SC_PAGE_SIZE"), descriptors, files, threading.active_count(), objects)


def cycle(precision: str, how: str) -> list[weakref.ref[Any]]:
    """One life; weak references to what lived."""
    accelerator = Accelerator(cpu=True, mixed_precision=precision, gradient_accumulation_steps=2)
    model: Any = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
    optimizer: Any = AdamW(model.parameters())
    schedule: Any = StepLR(optimizer, step_size=1)
    raw_model, raw_optimizer, raw_schedule = model, optimizer, schedule
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(12, WIDTH, generator=generator), torch.randn(12, 1, generator=generator))
    loader: Any = DataLoader(data, batch_size=2, shuffle=True)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    lived = [model, optimizer, loader, schedule, raw_model, raw_optimizer, raw_schedule, data, accelerator]
    lived += [accelerator.scaler] if accelerator.scaler is not None else []
    references = [weakref.ref(one) for one in lived]
    del lived, raw_model, raw_optimizer, raw_schedule, data
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(inputs), targets)
            if how == "weighted":
                accelerator.backward(loss * len(inputs), weight=len(inputs))
            else:
                accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        if how == "broken off":
            break
    del inputs, targets, loss
    if how != "without free_memory":
        model, optimizer, loader, schedule = accelerator.free_memory(model, optimizer, loader, schedule)
    return references


def settle() -> None:
    """Lets the collector leave alone what is there already: the modules of torch cost it a tenth of a second a time."""
    gc.collect()
    gc.freeze()


def lives(precision: str, how: str, cycles: int, folder: str) -> tuple[Held, Held, list[str]]:
    """What the process has after the warm-up and at the end, and the kinds of what was still alive after a cycle."""
    left: list[str] = []
    tempfile.tempdir = folder  # nobody else writes there
    cycle(precision, how)  # imports what is imported late
    settle()
    for number in range(cycles):
        references = cycle(precision, how)
        gc.collect()
        left += [type(one).__name__ for one in (reference() for reference in references) if one is not None]
        if number == WARM_UP - 1:
            before = held()
    after = held()
    release()
    return before, after, left


@pytest.mark.grid(1)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this system does not tell a process its size")
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    ("precision", "how"),
    [
        ("no", "plain"),
        ("no", "weighted"),
        ("no", "without free_memory"),
        ("fp16", "plain"),
        ("fp16", "broken off"),
        ("fp16", "without free_memory"),
    ],
)
def test_lives_leave_nothing_behind(
    world: MakePool, precision: str, how: str, size: int, cases: Callable[[int, int], range], tmp_path: Path
) -> None:
    """T34, A5: under 1 MB a cycle, no file, thread or list, and no model, optimizer, loader or schedule is alive."""
    cycles = len(cases(15, 50))
    for before, after, left in world(size).run(lives, precision, how, cycles, str(tmp_path), timeout_s=100):
        assert left == []
        assert (after.memory - before.memory) / (cycles - WARM_UP) < MEGABYTE
        assert after._replace(memory=0, objects=0) == before._replace(memory=0, objects=0)
        assert after.objects - before.objects < cycles - WARM_UP


def kept_accelerator(cycles: int) -> tuple[float, int]:
    """One Accelerator that trains again and again."""
    accelerator = Accelerator(cpu=True, mixed_precision="fp16")
    reference: list[weakref.ref[Any]]
    before, alive = 0, 0
    settle()
    for number in range(cycles):
        model: Any = nn.Linear(WIDTH, WIDTH)
        optimizer: Any = AdamW(model.parameters())
        schedule: Any = StepLR(optimizer, step_size=1)
        loader: Any = DataLoader(TensorDataset(torch.zeros(8, 1)), batch_size=2)
        reference = [weakref.ref(model), weakref.ref(optimizer), weakref.ref(schedule), weakref.ref(loader)]
        model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
        reference += [weakref.ref(model), weakref.ref(optimizer), weakref.ref(schedule), weakref.ref(loader)]
        accelerator.backward(model(torch.randn(2, WIDTH)).mean())
        optimizer.step()
        model, optimizer, loader, schedule = accelerator.free_memory(model, optimizer, loader, schedule)
        gc.collect()
        alive += sum(one() is not None for one in reference)
        if number == WARM_UP - 1:
            before = held().memory
    return (held().memory - before) / (cycles - WARM_UP), alive


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this system does not tell a process its size")
@pytest.mark.parametrize("size", [1, 2])
def test_free_memory_is_enough(world: MakePool, size: int, cases: Callable[[int, int], range]) -> None:
    """T34: `a, b = accelerator.free_memory(a, b)` and nothing else, also between runs of one Accelerator."""
    for grown, alive in world(size).run(kept_accelerator, len(cases(15, 50)), timeout_s=60):
        assert grown < MEGABYTE
        assert alive == 0


class Watcher:
    """An object that is called before steps."""

    def see(self, optimizer: Optimizer) -> None:
        """Do nothing."""


def hooks(how: str) -> int:
    """How many hooks are left: fp16 guards optimizers with one that torch keeps for all of them.

    Those of objects that are gone go with the next hook that is added.
    """
    registered = vars(sys.modules[Optimizer.__module__])["_global_optimizer_pre_hooks"]
    before = len(registered)
    for _ in range(3):
        cycle("fp16", how)
    gc.collect()
    watcher = Watcher()
    call_before_steps(watcher.see)
    return len(registered) - before - 1


@pytest.mark.parametrize("how", ["plain", "without free_memory"])
def test_no_hook_of_torch_is_left(world: MakePool, how: str) -> None:
    """T34: each step of each optimizer would go through all that are."""
    assert world(1).run(hooks, how) == [0]
