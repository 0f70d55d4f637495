"""Record the steps of a script that runs with the real Accelerator."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, final
from unittest.mock import patch

from accel.accelerator import Accelerator
from accel.data_loader import DataLoaderShard
from accel.optimizer import AcceleratedOptimizer
from accel.scheduler import AcceleratedScheduler
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from accel_verify.round_trip import model_changes, state_changes
from accel_verify.step_record import GRADIENT, RunEnd, StepRecord, write_end, write_step
from accel_verify.step_watcher import StepWatcher


@final
class Recorder(StepWatcher):
    """The observer of every Accelerator of a script (`accel.step.observer`).

    Args:
        folder: Folder for the records of all ranks.
        rank: Rank of this process.
        steps: Number of steps to record of each optimizer.
    """

    def __init__(self, folder: Path, rank: int, steps: int) -> None:
        super().__init__(steps)
        self._folder, self._rank = folder, rank
        (folder / f"rank-{rank}").mkdir(parents=True)
        self._end = RunEnd()
        self._round_trips: list[Callable[[], list[str]]] = []
        # the record that is not written yet, and whether the optimizer was called for it
        self._open: list[StepRecord] = []
        self._stepped = False

    def prepared(self, accelerator: Accelerator, ready: object) -> None:
        """Note an object that an Accelerator has prepared."""
        self._end.precision, self._end.device = accelerator.mixed_precision, accelerator.device.type
        self._end.replicas = accelerator.run.mesh.replicas
        if isinstance(ready, nn.Module):
            self._round_trips.append(partial(model_changes, accelerator, ready))
            self.models.append(accelerator.unwrap_model(ready))
        elif isinstance(ready, DataLoader):
            self._end.loaders += 1
        elif isinstance(ready, AcceleratedOptimizer | AcceleratedScheduler):
            self._round_trips.append(partial(state_changes, ready, copy.deepcopy(ready.state_dict())))
        if isinstance(ready, AcceleratedOptimizer):
            self.add_optimizer(ready.optimizer)
            ready.on_step = self.on_step

    def before_step(self, optimizer: Optimizer) -> None:
        """Begin a record."""
        self._write()
        self._open.append(self.begin_record(optimizer))

    def after_step(self, optimizer: Optimizer) -> None:
        """Add the parameters after the step to the record."""
        self.end_record(self._open[-1], optimizer)
        self._stepped = True

    def on_step(self, optimizer: AcceleratedOptimizer) -> None:
        """Note in the record if the step was skipped.

        A fused optimizer is called even if it skips the step.
        """
        if optimizer.step_was_skipped:
            if not self._stepped:
                self.before_step(optimizer.optimizer)
                self.made += 1
            self.skipped.append(self.made)
            record, kind = self._open[-1], GRADIENT.format("")
            finite = [tensor.isfinite().all() for name, tensor in record.tensors.items() if name.startswith(kind)]
            record.skipped, record.overflowed = True, not all(finite)
        self._stepped = False

    def finish(self) -> None:
        """Write how the run ended, and on rank 0 what a save and load round trip changes.

        No rank waits for another.
        """
        self._write()
        self._end.settings = [self.settings(optimizer) for optimizer in self.optimizers]
        if self._rank == 0 and self._end.steps:
            self._end.changed = [change for round_trip in self._round_trips for change in round_trip()]
        write_end(self._folder, self._rank, self._end)

    def _write(self) -> None:
        for record in self._open:
            self._end.steps += 1
            write_step(self._folder, self._rank, self._end.steps, record)
        self._open.clear()


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Record the steps of every Accelerator inside the block."""
    iterate_whole = DataLoaderShard.__iter__

    def iterate(self: Any) -> Iterator[Any]:
        for batch in iterate_whole(self):
            recorder.stop_if_done()
            yield batch

    with patch.object(Accelerator, "observer", recorder), patch.object(DataLoaderShard, "__iter__", iterate):
        yield
