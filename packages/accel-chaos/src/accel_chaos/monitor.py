"""Observe a script in one of its processes: its phases, its steps, and the states before them."""

from __future__ import annotations

import os
import signal
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, final
from unittest.mock import patch

import torch
from accel import Accelerator
from accel.checkpoint.checkpointer import Checkpointer
from accel.data_loader import DataLoaderShard
from accel.optimizer import AcceleratedOptimizer
from accel_checkpoint import save_object
from accel_checkpoint.filesystem import Filesystem
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from accel_chaos.injection import Injector
from accel_chaos.state_digest import TrainingState, sample_digests
from accel_chaos.step_log import WEIGHTS, Step, StepLog, find_base, read_attempts

#: the final weights of a run, which rank 0 writes
FINAL = "final.safetensors"


@final
class RunMonitor:
    """The observer of every Accelerator of a script (`accel.step.observer`).

    Args:
        folder: Folder of the run.
        undisturbed: Folder of the undisturbed run, or None in that run itself.
        attempt: Name of this attempt.
        rank: Rank of this process.
        world: Number of processes.
    """

    def __init__(self, folder: Path, undisturbed: Path | None, attempt: str, rank: int, world: int) -> None:
        self._folder, self._undisturbed, self._rank, self._world = folder, undisturbed, rank, world
        self._attempt = attempt
        self._log = StepLog(folder / "attempts", attempt, rank)
        self._injector = Injector(folder, attempt, rank, world, self._workers)
        self._state = TrainingState()
        self._iterators: weakref.WeakSet[Any] = weakref.WeakSet()
        self._before: dict[str, str] | None = None
        self._begun, self._step = False, 0
        #: whether a loader reads a stream, and the checkpoint that was loaded
        self._streams = False
        self._loaded: str | None = None
        self._samples: list[str] = []
        self._losses: list[float] = []
        self._rates: list[float] = []
        self._counts: dict[str, int] = {}
        #: whether something was written since the newest step, and whether the loader in hand trains
        self._saving = self._trained = False

    def prepared(self, accelerator: Accelerator, ready: object) -> None:
        """Take note of an object that an Accelerator has prepared."""
        self._state.accelerator = accelerator
        self._reach("start")
        if isinstance(ready, nn.Module):
            self._state.models.append(accelerator.unwrap_model(ready))
            ready.register_forward_pre_hook(self._before_forward, with_kwargs=True)
        elif isinstance(ready, DataLoader):
            self._streams = self._streams or isinstance(ready.dataset, IterableDataset)
        elif isinstance(ready, AcceleratedOptimizer):
            self._state.optimizers.append(ready.optimizer)
            ready.optimizer.register_step_pre_hook(lambda *_: self._before_step())
            ready.on_step = self._after_step

    def loss(self, loss: torch.Tensor, weight: torch.Tensor | float | None) -> None:
        """Take note of a loss, whose backward begins."""
        self._look()
        self._losses.append(float(loss.detach()))
        if loss.requires_grad:
            loss.register_hook(lambda gradient: self._reach("backward"))

    def finish(self) -> None:
        """Note the end of the script, and write the final weights on rank 0."""
        self._look()  # an attempt that had nothing more to do has made no step
        self._log.write("end", states=self._state.states())
        tensors = self._state.final()
        if self._rank == 0:
            save_object(tensors, self._folder / FINAL, safe_serialization=True)

    def _reach(self, phase: str) -> None:
        nth = self._counts.get(phase, 0)
        self._counts[phase] = nth + 1
        if self._undisturbed is None:
            place = {"phase": phase, "rank": self._rank, "step": self._step, "nth": nth}
            self._log.write("occurrence", **place, workers=bool(self._workers()))
        self._injector.reach(phase, self._step, nth)

    def _workers(self) -> list[int]:
        return [
            worker.pid
            for iterator in self._iterators
            for worker in getattr(iterator, "_workers", [])
            if worker.pid is not None and worker.is_alive()
        ]

    def _before_forward(self, module: nn.Module, arguments: Any, named: Any) -> None:
        if not (module.training and torch.is_grad_enabled()):
            self._reach("evaluation")
            return
        self._look()
        self._samples += sample_digests([arguments, named])
        self._trained = True
        self._reach("forward")

    def _look(self) -> None:
        """Take the states before a step, at its first forward or backward."""
        if self._before is not None:
            return
        if not self._begun:
            self._state.look_around()
        self._before = self._state.states()
        if not self._begun:
            self._begun = True
            base: int | None = 0
            if self._undisturbed is not None:
                base = self._find_base(self._before[WEIGHTS])
            self._step = base or 0
            self._log.write("begin", world=self._world, base=base, states=self._before, streams=self._streams)

    def _find_base(self, weights: str) -> int | None:
        """Return after how many steps of the job this attempt begins."""
        earlier = [*read_attempts(self._folder / "attempts")]
        own = [*read_attempts(self._folder / "attempts", self._rank)] or earlier
        undisturbed = self._undisturbed or self._folder
        found = find_base(weights, read_attempts(undisturbed / "attempts", self._rank), own)
        if found is None and self._loaded is not None:
            found = next((one.places[self._loaded] for one in reversed(earlier) if self._loaded in one.places), None)
        return found

    def _before_step(self) -> None:
        self._rates += self._state.rates()
        self._reach("optimizer")

    def _after_step(self, optimizer: AcceleratedOptimizer) -> None:
        handler = signal.getsignal(signal.SIGTERM)
        noted = handler not in (signal.SIG_DFL, signal.SIG_IGN, None)
        before, after = self._before or {}, self._state.weights()
        self._log.step(Step(time.monotonic(), self._samples, self._losses, self._rates, before, after, noted))
        self._samples, self._losses, self._rates, self._counts = [], [], [], {}
        self._before, self._saving = None, False
        self._step += 1

    def writing(self) -> None:
        """Take note that a file of a save is about to be written."""
        self._injector.refuse_full_disk()

    def written(self) -> None:
        """Take note that a file of a save was written."""
        self._saving = True
        self._reach("save")

    def renaming(self, path: Any, to: Any) -> None:
        """Take note that a file or folder gets its final name."""
        if self._saving and str(self._folder) not in (str(path), str(to)):
            self._reach("rename")

    def saved(self, folder: Path) -> None:
        """Take note of a checkpoint that was saved."""
        self._log.write("saved", folder=str(folder), step=self._step)

    def loaded(self, folder: Path) -> None:
        """Take note of a checkpoint that was loaded."""
        self._loaded = str(folder)

    def iterating(self, iterator: Any) -> None:
        """Take note of an iterator with loader workers, whose next batch is due."""
        self._iterators.add(iterator)
        self._reach("loader-worker")

    def passed(self) -> None:
        """Take note of the end of a pass over a loader."""
        if self._trained:
            self._reach("epoch-end")
        self._trained = False


@contextmanager
def monitored(monitor: RunMonitor) -> Iterator[None]:
    """Let a monitor observe the Accelerators, loaders, saves and renames inside of the block."""
    write, replace, rename, save = Filesystem.write, os.replace, os.rename, torch.save
    load, save_state = Checkpointer._loaded, Checkpointer.save
    iterate, following = DataLoaderShard.__iter__, _MultiProcessingDataLoaderIter._next_data

    def next_batch(self: Any) -> Any:
        monitor.iterating(self)
        return following(self)

    def passes(self: Any) -> Iterator[Any]:
        yield from iterate(self)
        monitor.passed()

    def written(self: Any, *arguments: Any, **named: Any) -> Any:
        monitor.writing()
        told = write(self, *arguments, **named)
        monitor.written()
        return told

    def saved(self: Any, *arguments: Any, **named: Any) -> Any:
        folder = save_state(self, *arguments, **named)
        monitor.saved(folder)
        return folder

    def loaded(self: Any, folder: Path, *arguments: Any) -> Any:
        monitor.loaded(folder)
        return load(self, folder, *arguments)

    def saves(*arguments: Any, **named: Any) -> None:
        monitor.writing()
        save(*arguments, **named)
        monitor.written()

    def moving(move: Callable[..., Any]) -> Callable[..., Any]:
        def moved(path: Any, to: Any, **named: Any) -> Any:
            monitor.renaming(path, to)
            return move(path, to, **named)

        return moved

    with ExitStack() as stack:
        for owner, name, value in (
            (Accelerator, "observer", monitor),
            (DataLoaderShard, "__iter__", passes),
            (_MultiProcessingDataLoaderIter, "_next_data", next_batch),
            (Filesystem, "write", written),
            (Checkpointer, "save", saved),
            (Checkpointer, "_loaded", loaded),
            (torch, "save", saves),
            (os, "replace", moving(replace)),
            (os, "rename", moving(rename)),
        ):
            stack.enter_context(patch.object(owner, name, value))
        yield
