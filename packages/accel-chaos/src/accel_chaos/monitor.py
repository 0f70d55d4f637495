"""Note what a script does in one of its processes: its phases, its steps, and the states before them."""

from __future__ import annotations

import json
import os
import signal
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, final
from unittest.mock import patch

import torch
from accel import Accelerator
from accel.data_loader import DataLoaderShard
from accel.optimizer import AcceleratedOptimizer
from accel_checkpoint import save_object
from accel_checkpoint.filesystem import Filesystem
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from accel_chaos.history import Step, find_base, read_attempts
from accel_chaos.injection import Injector
from accel_chaos.state_digest import TrainingState, sample_digests

#: the final weights of a run, which rank 0 writes
FINAL = "final.safetensors"


@final
class RunMonitor:
    """The observer of every Accelerator of a script (`accel.step.observer`).

    Args:
        folder: Folder of the run.
        undisturbed: Folder of the undisturbed run, which may be the same.
        attempt: Name of this attempt.
        rank: Rank of this process.
        world: Number of processes.
    """

    def __init__(self, folder: Path, undisturbed: Path, attempt: str, rank: int, world: int) -> None:
        self._folder, self._undisturbed, self._rank, self._world = folder, undisturbed, rank, world
        (folder / attempt).mkdir(exist_ok=True)
        # a line is one call of write, so that a kill leaves it whole or absent
        path = folder / attempt / f"rank-{rank}.jsonl"
        self._log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._injector = Injector(folder, attempt, rank, world, self._workers)
        self._state = TrainingState()
        self._iterators: weakref.WeakSet[Any] = weakref.WeakSet()
        self._before: dict[str, str] | None = None
        self._begun = self._streams = False
        self._step = 0
        self._samples: list[str] = []
        self._losses: list[float] = []
        self._rates: list[float] = []
        self._counts: dict[str, int] = {}
        #: whether something was written since the newest step, and whether the loader in hand trains
        self._saving = self._trained = False

    def prepared(self, accelerator: Accelerator, ready: Any) -> None:
        """Take note of an object that an Accelerator has prepared."""
        self._state.accelerator = accelerator
        self.reach("start")
        if isinstance(ready, nn.Module):
            self._state.models.append(accelerator.unwrap_model(ready))
            # before sharded parameters are gathered
            ready.register_forward_pre_hook(self._before_forward, with_kwargs=True, prepend=True)
        elif isinstance(ready, DataLoader):
            self._streams |= isinstance(ready.dataset, IterableDataset)
        elif isinstance(ready, AcceleratedOptimizer):
            self._state.optimizers.append(ready.optimizer)
            ready.optimizer.register_step_pre_hook(self._before_step)
            ready.on_step = self._after_step

    def loss(self, loss: torch.Tensor, weight: torch.Tensor | float | None) -> None:
        """Take note of a loss, whose backward begins."""
        self._look()
        self._losses.append(float(loss.detach()))
        loss.register_hook(lambda _: self.reach("backward"))  # type: ignore[no-untyped-call] # of torch

    def finish(self) -> None:
        """Note the end of the script, and write the final weights on rank 0."""
        self._look()  # an attempt that had nothing more to do has made no step
        self._write("end", states=self._state.states())
        tensors = self._state.final()
        if self._rank == 0:
            save_object(tensors, self._folder / FINAL, safe_serialization=True)

    def reach(self, phase: str) -> None:
        """Take note that the script enters a phase."""
        nth = self._counts.get(phase, 0)
        self._counts[phase] = nth + 1
        if self._undisturbed == self._folder:
            place = {"phase": phase, "rank": self._rank, "step": self._step, "nth": nth}
            self._write("occurrence", **place, workers=bool(self._workers()))
        self._injector.reach(phase, self._step, nth)

    def writing(self, *_: Any) -> None:
        """Take note that a file of a save is about to be written."""
        self._saving = True

    def renaming(self, *paths: Any) -> None:
        """Take note that a file or folder gets its final name."""
        if self._saving and not any(str(path).startswith(str(self._folder / FINAL)) for path in paths):
            self.reach("rename")

    def waiting(self, iterator: Any) -> None:
        """Take note of an iterator with loader workers, whose next batch is due."""
        self._iterators.add(iterator)
        self.reach("loader-worker")

    def passes(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches of a pass over a loader, and take note of its end."""
        yield from batches
        if self._trained:
            self.reach("epoch-end")
        self._trained = False

    def _write(self, event: str, **values: Any) -> None:
        os.write(self._log, (json.dumps({"event": event, **values}) + "\n").encode())

    def _workers(self) -> list[int]:
        workers = [worker for iterator in self._iterators for worker in iterator._workers]
        return [worker.pid for worker in workers if worker.is_alive()]

    def _before_forward(self, module: nn.Module, arguments: Any, named: Any) -> None:
        if not (module.training and torch.is_grad_enabled()):
            self.reach("evaluation")
            return
        self._look()
        self._samples += sample_digests([arguments, named])
        self._trained = True
        self.reach("forward")

    def _look(self) -> None:
        """Take the states before a step, at its first forward or backward."""
        if self._before is not None:
            return
        if not self._begun:
            self._state.look_around()
        self._before = self._state.states()
        if not self._begun:
            # rank 0 has logged all attempts, and its weights are those of all
            runs = [read_attempts(folder) for folder in (self._folder, self._undisturbed)]
            self._begun, base = True, find_base(self._before, *runs) if any(runs) else 0
            self._step = base or 0
            self._write("begin", world=self._world, base=base, states=self._before, streams=self._streams)

    def _before_step(self, *_: Any) -> None:
        self._rates += self._state.rates()
        self.reach("optimizer")

    def _after_step(self, optimizer: AcceleratedOptimizer) -> None:
        noted = signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, signal.SIG_IGN, None)
        before, after = self._before or {}, self._state.weights()
        step = Step(time.monotonic(), self._samples, self._losses, self._rates, before, after, noted)
        self._write("step", **asdict(step))
        self._samples, self._losses, self._rates, self._counts = [], [], [], {}
        self._before, self._saving = None, False
        self._step += 1


@contextmanager
def monitored(monitor: RunMonitor) -> Iterator[None]:
    """Let a monitor observe the Accelerators, loaders, saves and renames inside of the block."""
    with ExitStack() as stack:

        def tell(owner: Any, name: str, before: Callable[..., None], after: Callable[[], None] = lambda: None) -> None:
            call = getattr(owner, name)

            def told(*arguments: Any, **named: Any) -> Any:
                before(*arguments)
                result = call(*arguments, **named)
                after()
                return result

            stack.enter_context(patch.object(owner, name, told))

        iterate = DataLoaderShard.__iter__
        stack.enter_context(patch.object(DataLoaderShard, "__iter__", lambda self: monitor.passes(iterate(self))))
        stack.enter_context(patch.object(Accelerator, "observer", monitor))
        tell(_MultiProcessingDataLoaderIter, "_next_data", monitor.waiting)
        for owner, name in ((Filesystem, "write"), (torch, "save")):
            tell(owner, name, monitor.writing, lambda: monitor.reach("save"))
        for name in ("replace", "rename"):
            tell(os, name, monitor.renaming)
        yield
