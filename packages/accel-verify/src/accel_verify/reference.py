"""Run a script as plain PyTorch: one process, float32, the batches of the whole job, no step code of accel."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from inspect import signature
from itertools import chain
from types import MethodType
from typing import Any, ClassVar
from unittest.mock import patch

import accel.accelerator
import torch
from accel.accelerator import Accelerator
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader

from accel_verify.checker import Checker
from accel_verify.reference_loader import CannotVerify, GlobalBatches, GlobalLoader
from accel_verify.step_watcher import held_parameters

Parameters = torch.Tensor | Iterable[torch.Tensor]


class ReferenceAccelerator:
    """An accelerator that makes the steps of the whole job in plain PyTorch, in the place of Accelerator.

    It takes the arguments of Accelerator. A real Accelerator does everything that is no part of the step.
    """

    checker: ClassVar[Checker]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        bound = signature(Accelerator).bind(*args, **kwargs)
        bound.apply_defaults()
        self._arguments = bound.arguments
        given = bound.arguments["parallelism_config"]
        # ranks that share sequences have whole models, and here the whole sequences
        whole = given is None or (given.tp_size, given.dp_shard_size) == (1, 1)
        self._real = Accelerator(
            **{**self._arguments, "mixed_precision": "no", "fp16": False, "cpu": True, "strategy": "auto"}
            | ({"parallelism_config": None} if whole else {})
        )
        self.gradient_accumulation_steps = self._real.gradient_accumulation_steps
        self.num_processes = self.checker.data_ranks
        self.last_loss: float | None = None
        self.optimizer_step_was_skipped = False
        #: whether the current micro-batch ends with an optimizer step
        self.sync_gradients = True
        # of the window: its micro-batches so far and in all, whether it is over, whether it has all its gradients, and
        # the sums of its weighted losses and of their weights
        self._number, self._planned, self._ended, self._whole = 0, 1, True, False
        self._loss = self._weight = 0.0
        self._ready: list[object] = []
        self._optimizers: list[Optimizer] = []
        self._passes: list[GlobalLoader] = []
        # optimizers that have stepped since their gradients were cleared, and that skipped their newest step
        self._spent: set[int] = set()
        self._skipped: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_real"], name)

    def prepare(self, *objects: Any, device_placement: object = None) -> Any:
        """Return the objects, watched. Objects of no class of torch are returned as they are."""
        ready = tuple(map(self.prepare_object, objects))
        return ready[0] if len(ready) == 1 else ready

    def prepare_object(self, unprepared: Any, *_: Any, ending: Any = None, **__: Any) -> Any:
        """Return an object, watched.

        Args:
            unprepared: A model, optimizer, scheduler or loader, or another object, which is returned as it is.
            _: Not used.
            ending: How the last batch of a loader ends, as for `Accelerator.prepare_data_loader`.
            __: Not used.
        """
        if any(unprepared is known for known in self._ready):
            return unprepared
        is_loader = isinstance(unprepared, DataLoader)
        ready = self._loader(unprepared, getattr(ending, "value", ending)) if is_loader else unprepared
        if isinstance(unprepared, nn.Module):
            self.checker.models.append(unprepared)
        elif isinstance(unprepared, Optimizer):
            self._guard_optimizer(unprepared)
        elif isinstance(unprepared, LRScheduler):
            self._guard_scheduler(unprepared)
        self._ready.append(ready)
        return ready

    prepare_model = prepare_optimizer = prepare_data_loader = prepare_scheduler = prepare_object

    @contextmanager
    def accumulate(self, *_: nn.Module) -> Iterator[None]:
        """Begin a micro-batch, and clear the gradients of a window that ended without a step."""
        end, every = self._real.settings.accumulation.end, self.gradient_accumulation_steps
        left = self._passes[-1].left if self._passes else None
        if self._ended:
            for parameter in self._parameters() if not self.sync_gradients else ():
                parameter.grad = None
            self._loss = self._weight = 0.0
            self._number, self._whole = 0, False
            self._planned = left + 1 if end == "flush" and left is not None and left + 1 < every else every
        self._number += 1
        last = left == 0 and self._number < every
        self.sync_gradients = self._number >= every or (last and end == "flush")
        self._ended = self.sync_gradients or (last and end == "drop")
        yield

    def backward(self, loss: torch.Tensor, *, weight: Any = None, **kwargs: Any) -> None:
        """Add the gradients of a loss to those of the window.

        They come to the gradients of the mean loss, or of the sum of losses divided by the sum of weights.

        Args:
            loss: Loss of a micro-batch.
            weight: Weight of the loss, such as its number of tokens.
            kwargs: Arguments for `torch.Tensor.backward`.
        """
        self.checker.loss(loss, weight)
        if weight is None:
            loss = loss / (self._planned if self._number > 0 else self.gradient_accumulation_steps)
        else:
            self._loss, self._weight = self._loss + float(loss.detach()), self._weight + float(weight)
        loss.backward(**kwargs)  # type: ignore[no-untyped-call] # of torch
        self._whole = self.sync_gradients
        if weight is not None and self._whole:
            for parameter in self._parameters():
                if parameter.grad is not None:
                    parameter.grad /= self._weight
            self.last_loss = self._loss / self._weight
            self._loss = self._weight = 0.0

    def clip_grad_norm_(self, parameters: Parameters, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Clip gradients by their norm at the end of a window, and only measure them inside a window.

        Args:
            parameters: The parameters whose gradients to clip.
            max_norm: Largest norm.
            norm_type: Order of the norm.
        """
        return nn.utils.clip_grad_norm_(parameters, max_norm if self.sync_gradients else math.inf, norm_type)

    def clip_grad_value_(self, parameters: Parameters, clip_value: float) -> None:
        """Clip the entries of gradients at the end of a window."""
        nn.utils.clip_grad_value_(parameters, clip_value if self.sync_gradients else math.inf)

    def skip_first_batches(self, dataloader: GlobalLoader, num_batches: int = 0) -> GlobalLoader:
        """Return a loader that skips the first batches of each pass."""
        twin = copy.copy(dataloader)
        twin.skipped, twin._iterator = num_batches, None
        return twin

    def no_op(self, *_: Any, **__: Any) -> nullcontext[None]:
        """Return a context that does nothing, for calls that plain PyTorch does not need."""
        return nullcontext()

    no_sync = trigger_sync_in_backward = join_uneven_inputs = autocast = unscale_gradients = no_op

    def _parameters(self) -> list[torch.Tensor]:
        of_models = [model.parameters() for model in self._ready if isinstance(model, nn.Module)]
        return list(dict.fromkeys(chain(*of_models, *map(held_parameters, self._optimizers))))

    def _guard_optimizer(self, optimizer: Optimizer) -> None:
        """Let an optimizer step, and clear its gradients, at the ends of windows only."""
        self._optimizers.append(optimizer)
        self.checker.add_optimizer(optimizer)
        raw_step, raw_zero_grad = optimizer.step, optimizer.zero_grad

        def step(raw: Optimizer, *closure: Any, **named: Any) -> Any:
            if not self.sync_gradients:
                return None
            self._spent.add(id(raw))
            skipped = self.checker.skips(raw)
            (self._skipped.add if skipped else self._skipped.discard)(id(raw))
            self.optimizer_step_was_skipped = bool(self._skipped)
            return None if skipped else raw_step(*closure, **named)

        def zero_grad(raw: Optimizer, set_to_none: bool = True) -> None:
            alone = self._whole and len(self._optimizers) == 1
            if id(raw) in self._spent or alone or self.gradient_accumulation_steps == 1:
                self._spent.discard(id(raw))
                raw_zero_grad(set_to_none=set_to_none)

        # bound like torch's own: a scheduler looks for the function behind the method
        optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign] # of this optimizer alone
        optimizer.zero_grad = MethodType(zero_grad, optimizer)  # type: ignore[method-assign] # as above

    def _guard_scheduler(self, scheduler: LRScheduler) -> None:
        """Let a scheduler advance with its optimizer, once for each process of the job."""
        always = not self._arguments["step_scheduler_with_optimizer"] or isinstance(scheduler, ReduceLROnPlateau)
        raw_step, optimizer = scheduler.step, scheduler.optimizer
        once = always or self._arguments["scheduler_once_per_step"] or self._real.split_batches

        def step(raw: LRScheduler, *args: Any, **kwargs: Any) -> None:
            if not always and (not self.sync_gradients or id(optimizer) in self._skipped):
                return
            for _ in range(1 if once else self.num_processes):
                total = vars(scheduler).get("total_steps")
                if always or total is None or scheduler.last_epoch < total:
                    raw_step(*args, **kwargs)

        # a class of its own: an attribute of the instance would be part of its state dict
        kind = type(scheduler)
        scheduler.__class__ = type(kind.__name__, (kind,), {"step": step})

    def _loader(self, loader: DataLoader[Any], ending: str | None) -> GlobalLoader:
        data = self._real.settings.data
        drop = bool(getattr(loader.batch_sampler, "drop_last", loader.drop_last))
        ending = ending or data.ending or ("drop" if drop else "pad" if data.even_batches else "join")
        batches = None
        if loader.batch_sampler is not None:
            batches = GlobalBatches(loader.batch_sampler, self.num_processes, split=data.split_batches, ending=ending)
        elif self.num_processes > 1:
            raise CannotVerify("a DataLoader with batch_size=None: its items cannot be put together into one batch")
        return GlobalLoader(loader, batches, self._passes, self.checker)


@contextmanager
def plain_pytorch(checker: Checker) -> Iterator[None]:
    """Let scripts that import Accelerator inside the block import a ReferenceAccelerator."""
    reference = type("Accelerator", (ReferenceAccelerator,), {"checker": checker})
    with patch.object(accel, "Accelerator", reference), patch.object(accel.accelerator, "Accelerator", reference):
        yield
