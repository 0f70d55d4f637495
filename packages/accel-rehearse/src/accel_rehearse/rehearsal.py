"""Run a script as one rank of many, on fake tensors, and note what it does."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from operator import length_hint
from typing import Any
from unittest.mock import Mock, patch

import torch
from accel import Accelerator
from accel.data_loader import DataLoaderShard
from accel.optimizer import AcceleratedOptimizer
from accel.preparation import Preparer
from torch import nn
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.nn.modules import module as modules
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ChainedScheduler, LRScheduler, SequentialLR
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import DataLoader

from accel_rehearse.allocations import (
    BATCHES,
    GRADIENTS,
    OPTIMIZER,
    PARAMETERS,
    Allocations,
)
from accel_rehearse.exchanges import ExchangeLog
from accel_rehearse.fake_dispatch import FakeDispatch
from accel_rehearse.loop_bounds import EVALUATION_BATCHES, FURTHER_S, IDS, RehearsalOver
from accel_rehearse.nested_tensors import local_bytes_of, tensors_in
from accel_rehearse.placeholders import Placeholders
from accel_rehearse.refusal import CannotRehearse, frame_of_script, line_of
from accel_rehearse.stage import BACKWARD, PREPARE, STEP, Stage
from accel_rehearse.surroundings import (
    Pieces,
    converting_in_place,
    exchange_in_python,
    many_at_once,
    within,
    writing_nothing,
)
from accel_rehearse.training_loop import end_of, epochs_of


class Rehearsal:
    """A script that runs as one rank of many, and what is noted of it. It observes every Accelerator.

    Args:
        steps: Optimizer steps to make.
        cpu: Whether the job computes on the CPU, and not on devices with memory of their own.
    """

    def __init__(self, steps: int, *, cpu: bool) -> None:
        self.stage, self._steps, self._cpu = Stage(), steps, cpu
        self.allocations = Allocations(self.stage, apart=not cpu)
        self.exchanges = ExchangeLog()
        #: what is wrong, and what cannot be rehearsed: what, the line, and what would help
        self.mistakes: list[tuple[str, str, str]] = []
        self.refusals: list[tuple[str, str, str]] = []
        self.placeholders = Placeholders(self.refusals)
        #: the loaders that are trained on, with the epochs around, the number at which a break may end their loop, and
        #: the tokens of a sample
        self.training: dict[Any, tuple[int, float, int]] = {}
        # the loaders of the passes under way, with the epochs and the end of their loop, and the tokens of a sample of
        # the newest batch
        self._passing: list[tuple[Any, int, float]] = []
        self._tokens = 0
        #: when further passes end, once all steps are made
        self.ends_at: float | None = None
        self.mode = FakeDispatch(self.stage, self.allocations, self.exchanges, self.placeholders)
        self.models: list[nn.Module] = []
        self.optimizers: list[Optimizer] = []
        #: torch's schedulers, with their places after each round of steps
        self.schedules: dict[Any, list[int]] = {}
        self._made = 0
        #: bytes of gradients before the newest steps
        self.gradients_bytes: dict[int, int] = {}
        #: exchanges, operations and changes of memory until the end of each round of steps
        self.marks = [(0, self.mode.flops, 0)]
        #: lines of the script, by what it does there first
        self.lines: dict[str, str] = {}
        #: what is called to save a model in a format of its own
        self.unwritten = Mock(return_value=None)

    def prepared(self, accelerator: Accelerator, ready: object) -> None:
        """Note an object that an Accelerator has prepared."""
        self.accelerator = accelerator
        if isinstance(ready, nn.Module):
            self.models.append(ready)
            self._line("prepare")
            inner = accelerator.unwrap_model(ready)
            self.stage.name(inner)
            self.allocations.note_all(list(ready.parameters()), PARAMETERS)
            self.allocations.move([*ready.parameters(), *ready.buffers()])
            if hasattr(inner, "save_pretrained"):
                inner.__dict__["save_pretrained"] = self.unwritten
        elif isinstance(ready, AcceleratedOptimizer):
            self.optimizers.append(ready.optimizer)
        elif isinstance(ready, DataLoaderShard):
            if ready._dispatch is not None and accelerator.process_index:
                raise CannotRehearse(
                    f"rank {accelerator.process_index} is sent its batches by rank 0, which does not run here: rehearse"
                    " rank 0 alone (--ranks 0), or leave out dispatch_batches=True"
                )
            if not length_hint(ready, 1):
                self.mistakes.append(
                    ("an epoch has no batch for this rank", line_of(), "a smaller batch, or fewer ranks")
                )

    def loss(self, loss: torch.Tensor, weight: torch.Tensor | float | None) -> None:
        """Note that a backward begins."""
        for loader, epochs, end in self._passing:
            if loader not in self.training:
                self.training[loader] = (epochs, end, self._tokens)
                self.exchanges.call(f"training on {length_hint(loader) or 'an unknown number of'} batches")

    def begin(self) -> None:
        """Note from now on what the process does, until it ends. The script has to run in the mode."""
        during = self.stage.during
        Accelerator.observer = self
        modules.register_module_parameter_registration_hook(self.mode.given)
        modules.register_module_buffer_registration_hook(self.mode.given)
        modules.register_module_forward_pre_hook(self.stage.enter)
        modules.register_module_forward_hook(self.stage.leave, always_call=True)
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)
        for changed in (
            *self.placeholders.patches(),
            within(torch.UntypedStorage, "resize_", self.allocations.resize),
            patch.object(DataLoaderShard, "__iter__", self._bounded(DataLoaderShard.__iter__)),
            within(torch.autograd, "_engine_run_backward", lambda *_: during(BACKWARD)),
            within(Preparer, "model", lambda *_: during(PREPARE)),
            within(DistributedDataParallel, "_pre_forward", exchange_in_python),
            patch("torch.distributed.fsdp._fully_shard._fsdp_param._chunk_with_empty", Pieces),
            within(Accelerator, "gather", self._gathering),
            within(DataLoader, "__iter__", self._iterating),
            # those that have others in them do not begin as these do
            *(within(kind, "__init__", self._scheduling) for kind in (LRScheduler, SequentialLR, ChainedScheduler)),
            within(logging.Logger, "callHandlers", self._logging),
            # DTensor asks for shapes by fakes of its own
            within(ShardingPropagator, "_propagate_tensor_meta_non_cached", lambda *_: _disable_current_modes()),
            converting_in_place(),
            *writing_nothing(self.exchanges.call),
            *many_at_once(cpu=self._cpu),
        ):
            changed.start()

    def _bounded(self, iterate: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Iterator[Any]]:
        """Return the `__iter__` of prepared loaders whose passes end early."""

        def batches_of(loader: Any) -> Iterator[Any]:
            if self.ends_at and loader in self.training and time.monotonic() > self.ends_at:
                raise RehearsalOver
            self._passing.append(under_way := (loader, epochs_of(frame_of_script()), end_of(frame_of_script())))
            try:
                for served, batch in enumerate(iterate(loader)):
                    if served and (self.ends_at if loader in self.training else served >= EVALUATION_BATCHES):
                        return
                    self.allocations.note_all(batch, BATCHES)
                    self._tokens = max(
                        (one.shape[1] for one in tensors_in(batch) if one.ndim == 2 and one.dtype in IDS), default=0
                    )
                    yield batch
            finally:
                self._passing.remove(under_way)

        return batches_of

    def _line(self, what: str) -> None:
        self.lines.setdefault(what, line_of())

    def _gathering(self, *_: object) -> None:
        for loader, *_rest in self._passing[-1:]:
            length = length_hint(loader.dataset)
            more = -length % (loader.total_batch_size or 1)
            if self.stage.evaluating and more and loader not in self.training:
                self.mistakes.append(
                    (
                        f"gather returns repeated samples too: {length + more} for {length} of the data",
                        line_of(),
                        "use accelerator.gather_for_metrics",
                    )
                )

    def _iterating(self, loader: DataLoader[Any]) -> None:
        if not isinstance(loader, DataLoaderShard):
            self._line("unprepared")

    def _scheduling(self, scheduler: LRScheduler, *_: object) -> None:
        self.schedules[scheduler] = []
        self._line("schedule")

    def _logging(self, logger: logging.Logger, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING and record.name.startswith("accel_data"):
            self.mistakes.append((record.getMessage(), line_of(), "do as the warning says"))

    def _before_step(self, optimizer: Optimizer, *_: object) -> None:
        gradients = [one.grad for group in optimizer.param_groups for one in group["params"] if one.grad is not None]
        self.allocations.note_all(gradients, GRADIENTS)
        if gradients:
            self.gradients_bytes[id(optimizer)] = local_bytes_of(gradients)
        self._stepping = self.stage.during(STEP)
        self._stepping.__enter__()

    def _after_step(self, optimizer: Optimizer, *_: object) -> None:
        self._stepping.__exit__(None, None, None)
        self.allocations.note_all(optimizer.state, OPTIMIZER)
        self._made += 1
        if not self.ends_at and self._made % (len(self.optimizers) or 1) == 0:
            self.marks.append((len(self.exchanges.log), self.mode.flops, len(self.allocations.changes)))
            for scheduler, places in self.schedules.items():
                while not hasattr(scheduler, "last_epoch"):  # torch's ChainedScheduler moves all in it
                    scheduler = scheduler._schedulers[0]
                places.append(scheduler.last_epoch)
            if len(self.marks) > self._steps:
                self.ends_at = time.monotonic() + FURTHER_S
        elif self.ends_at and not self.training:
            raise RehearsalOver  # nothing else ends its loop
