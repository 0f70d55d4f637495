"""Note what a script does in one of its processes: its phases, its steps, and the states before them."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, final
from unittest.mock import patch

import torch
from accel import Accelerator
from accel.data_loader import DataLoaderShard
from accel.optimizer import AcceleratedOptimizer
from accel_checkpoint import save_object
from accel_checkpoint.filesystem import Filesystem
from torch import nn

from accel_chaos.faults import STEP
from accel_chaos.history import UNDISTURBED, History, Step
from accel_chaos.injection import Injector, worker_pids
from accel_chaos.state_digest import TrainingState, sample_digests

#: the final weights of a run, which rank 0 writes
FINAL = "final.safetensors"


@final
class RunMonitor:
    """The observer of every Accelerator of a script (`accel.step.observer`).

    Args:
        injector: Raises faults in this process.
    """

    def __init__(self, injector: Injector) -> None:
        self._injector = injector
        self._log = injector.folder / f"{injector.attempt}-{injector.rank}.jsonl"
        self._state = TrainingState()
        self._begun = False
        #: whether the loader in hand trains
        self._trained = False
        #: the step in hand, and how often each phase was entered in it
        self._step = Step()
        self._counts: Counter[str] = Counter()

    def prepared(self, accelerator: Accelerator, ready: Any) -> None:
        """Take note of an object that an Accelerator has prepared."""
        self._state.accelerator = accelerator
        self.reach("start")
        if isinstance(ready, nn.Module):
            self._state.models.append(accelerator.unwrap_model(ready))
            # before sharded parameters are gathered
            ready.register_forward_pre_hook(self._before_forward, with_kwargs=True, prepend=True)
        elif isinstance(ready, AcceleratedOptimizer):
            self._state.optimizers.append(ready.optimizer)
            ready.optimizer.register_step_pre_hook(self._before_step)
            ready.on_step = self._after_step

    def loss(self, loss: torch.Tensor, weight: torch.Tensor | float | None) -> None:
        """Take note of a loss, whose backward begins."""
        self._look()
        loss.register_hook(lambda _: self.reach("backward"))  # type: ignore[no-untyped-call] # of torch

    def finish(self) -> None:
        """Note the end of the script, and write the final weights on rank 0."""
        if not self._state.models:
            return
        self._look()
        tensors = self._state.final()
        if self._injector.rank == 0:
            self._write("end", states=self._step.states)
            save_object(tensors, self._injector.folder / FINAL, safe_serialization=True)

    def reach(self, phase: str) -> None:
        """Take note that the script enters a phase."""
        nth = self._counts[phase]
        self._counts[phase] += 1
        self._write("place", phase=phase, step=self._step.number, nth=nth)
        self._injector.reach(phase, self._step.number, nth)

    def watch(self, owner: Any, name: str, phase: str) -> Any:
        """Return a context in which the script enters a phase before each call of a function.

        Args:
            owner: Module or class that has the function.
            name: Name of the function.
            phase: The phase.
        """
        call = getattr(owner, name)

        def watched(*arguments: Any, **named: Any) -> Any:
            self.reach(phase)
            return call(*arguments, **named)

        return patch.object(owner, name, watched)

    def passes(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches of a pass over a loader, and take note of its end."""
        for batch in batches:
            yield batch
            if worker_pids():
                self.reach("loader-worker")
        if self._trained:
            self.reach("epoch-end")
        self._trained = False

    def __deepcopy__(self, memo: Any) -> RunMonitor:
        """Return this monitor: a script may copy a model with its hooks."""
        return self

    def _write(self, event: str, **values: Any) -> None:
        values |= {"attempt": self._injector.attempt, "rank": self._injector.rank}
        with self._log.open("a") as file:
            print(json.dumps([event, values]), file=file)

    def _before_forward(self, module: nn.Module, arguments: Any, named: Any) -> None:
        if not (module.training and torch.is_grad_enabled()):
            self.reach("evaluation")
            return
        self._look()
        # samples that fill up a last batch come last, and processes that share layers or sequences have the same ones
        data_rank, others = divmod(self._injector.rank, self._state.accelerator.run.mesh.replicas)
        batch = self._state.accelerator.gradient_state.active
        if not others:
            real = batch.tail.real[data_rank] if batch and batch.tail else None
            self._step.samples += sample_digests([arguments, named])[:real]
        self._trained = True
        self.reach("forward")

    def _look(self) -> None:
        """Take the states before a step, at its first forward, backward or change of weights."""
        if self._step.states:
            return
        self._step.states = states = self._state.states()
        if not self._begun:
            self._begun = True
            folder = self._injector.folder
            # rank 0 has logged all attempts, and its weights are those of all; it may have died before its last line
            runs = [History(one, ranks="0") for one in (folder, folder.with_name(UNDISTURBED))]
            base = max(run.find(states) for run in runs)
            number = self._step.number = base if base >= 0 else len(runs[0].steps)
            self._write("begin", base=number, known=base >= 0, states=states)

    def _before_step(self, *_: Any) -> None:
        self._look()
        self.reach("optimizer")

    def _after_step(self, optimizer: AcceleratedOptimizer) -> None:
        self._step.time = time.monotonic()
        self._step.after = self._state.weights()
        self._step.world = self._injector.world
        self._write("step", **asdict(self._step))
        self._step = Step(number=self._step.number + 1)
        self._counts.clear()
        self._injector.reach(STEP, self._step.number, 0)


@contextmanager
def monitored(monitor: RunMonitor) -> Iterator[None]:
    """Let a monitor observe the Accelerators, loaders, saves and renames inside of the block."""
    iterate = DataLoaderShard.__iter__
    with (
        patch.object(DataLoaderShard, "__iter__", lambda self: monitor.passes(iterate(self))),
        patch.object(Accelerator, "observer", monitor),
        monitor.watch(Filesystem, "write", "save"),
        monitor.watch(torch, "save", "save"),
        monitor.watch(os, "replace", "rename"),
        monitor.watch(os, "rename", "rename"),
    ):
        yield
