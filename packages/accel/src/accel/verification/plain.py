"""Runs a script as plain PyTorch: one process, float32, the batches of the whole job, no step code of accel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from inspect import signature
from types import MethodType
from typing import Any, final

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader

from accel.accelerator import Accelerator
from accel.settings import AUTO
from accel.verification.calm import replaced
from accel.verification.checker import Checker
from accel.verification.plain_loader import GlobalLoader, Passes
from accel.verification.plain_window import PlainWindow


@final
class PlainTraining:
    """What stands in for the step of one Accelerator."""

    def __init__(self, accelerator: Accelerator, ranks: int, checker: Checker) -> None:
        self.accelerator = accelerator
        self.ranks = ranks
        self.checker = checker
        self.window = PlainWindow(accelerator.settings.accumulation.end)
        self.passes: Passes = []
        self.models: list[nn.Module] = []
        self.optimizers: list[Optimizer] = []
        self.ready: list[object] = []
        self.spent: set[int] = set()
        self.skipped: set[int] = set()
        self.weight = 0.0
        self.last_loss: float | None = None

    def prepare(self, one: Any, ending: str | None = None) -> Any:
        """The object, watched; what is none of torch's classes comes back as it is."""
        if any(one is known for known in self.ready):
            return one
        if isinstance(one, nn.Module):
            self.models.append(one)
            self.checker.models.append(one)
        elif isinstance(one, Optimizer):
            self._guard(one)
        elif isinstance(one, LRScheduler):
            self._guard_schedule(one)
        elif isinstance(one, DataLoader):
            one = self._loader(one, ending)
        self.ready.append(one)
        return one

    def begin(self) -> None:
        """Begins a micro-batch."""
        thrown_away = self.window.thrown_away
        left = self.passes[-1].left if self.passes else None
        if self.window.begin(self.accelerator.gradient_accumulation_steps, left):
            self.weight, self._sum = 0.0, 0.0
            if thrown_away:
                for parameter in self._parameters():
                    parameter.grad = None

    def backward(self, loss: torch.Tensor, weight: Any = None, **kwargs: Any) -> None:
        """Adds up gradients: of the mean of the window, or of all its losses over all its weights."""
        self.checker.limit.check()
        self.checker.loss(loss, weight)
        every, window = self.accelerator.gradient_accumulation_steps, self.window
        within = window.number > 0
        if weight is None:
            (loss / (window.planned if within else every)).backward(**kwargs)  # type: ignore[no-untyped-call]
        else:
            loss.backward(**kwargs)  # type: ignore[no-untyped-call]
            self.weight += float(weight)
            self._sum += float(loss.detach())
            if window.due:
                self.last_loss = self._sum / self.weight
                for parameter in self._parameters():
                    if parameter.grad is not None:
                        parameter.grad /= self.weight
                self.weight, self._sum = 0.0, 0.0
        window.whole = window.due

    _sum = 0.0

    def clip(self, parameters: torch.Tensor | Iterable[torch.Tensor], limit: float, kind: float) -> torch.Tensor:
        """The norm of the gradients, which are at most `limit` long afterwards where the window is whole."""
        chosen = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        found = [one.grad for one in chosen if one.grad is not None]
        norms = torch.stack([torch.linalg.vector_norm(one.double(), kind) for one in found])
        norm = torch.linalg.vector_norm(norms, kind)
        if self.window.due and float(norm) > limit:
            for one in found:
                one.mul_(limit / (float(norm) + 1e-6))
        total: torch.Tensor = norm.float()
        return total

    def clip_value(self, parameters: torch.Tensor | Iterable[torch.Tensor], limit: float) -> None:
        """Cuts each gradient to [-limit, limit] where the window is whole."""
        for one in [parameters] if isinstance(parameters, torch.Tensor) else parameters:
            if self.window.due and one.grad is not None:
                one.grad.clamp_(-limit, limit)

    def _parameters(self) -> list[torch.Tensor]:
        found = [one for model in self.models for one in model.parameters()]
        found += [one for optimizer in self.optimizers for group in optimizer.param_groups for one in group["params"]]
        return list({id(one): one for one in found}.values())

    def _guard(self, optimizer: Optimizer) -> None:
        """The optimizer itself, which steps and forgets its gradients at the ends of windows only."""
        self.optimizers.append(optimizer)
        self.checker.watch(optimizer)
        raw_step, raw_zero_grad = optimizer.step, optimizer.zero_grad

        def step(raw: Optimizer, closure: Callable[[], float] | None = None) -> Any:
            if not self.window.due:
                return None
            self.spent.add(id(raw))
            self.skipped.discard(id(raw))
            if self.checker.skips(raw):
                self.skipped.add(id(raw))
                return None
            return raw_step() if closure is None else raw_step(closure)

        def zero_grad(raw: Optimizer, set_to_none: bool = True) -> None:
            alone = self.window.whole and len(self.optimizers) == 1
            if id(raw) in self.spent or alone or self.accelerator.gradient_accumulation_steps == 1:
                self.spent.discard(id(raw))
                raw_zero_grad(set_to_none=set_to_none)

        # bound like torch's own: a scheduler looks for the function behind the method
        optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]
        optimizer.zero_grad = MethodType(zero_grad, optimizer)  # type: ignore[method-assign]

    def _guard_schedule(self, schedule: LRScheduler) -> None:
        """The schedule itself, which advances with its optimizer, once for each process of the job."""
        given = self.accelerator._preparer
        once = given.scheduler_once_per_step or self.accelerator.split_batches
        always = not given.step_scheduler_with_optimizer or isinstance(schedule, ReduceLROnPlateau)
        raw_step, times, of = schedule.step, 1 if once else self.ranks, id(schedule.optimizer)

        def step(raw: LRScheduler, *args: Any, **kwargs: Any) -> None:
            if always:
                raw_step(*args, **kwargs)
            elif self.window.due and of not in self.skipped:
                for _ in range(times):
                    total = vars(schedule).get("total_steps")
                    if total is None or schedule.last_epoch < total:
                        raw_step(*args, **kwargs)

        # of a class of its own: what stands in the instance is part of its state dict
        kind = type(schedule)
        schedule.__class__ = type(kind.__name__, (kind,), {"step": step})

    def _loader(self, loader: DataLoader[Any], ending: str | None) -> GlobalLoader:
        data = self.accelerator.settings.data
        drop = bool(getattr(loader.batch_sampler, "drop_last", loader.drop_last))
        by_flags = "drop" if drop else "pad" if data.even_batches else "join"
        return GlobalLoader(
            loader,
            ranks=self.ranks,
            split=data.split_batches,
            ending=ending or data.ending or by_flags,
            passes=self.passes,
            check=self.checker.limit.check,
        )


@contextmanager
def plain_pytorch(checker: Checker, ranks: int) -> Iterator[list[PlainTraining]]:
    """In this block every Accelerator leaves the step to plain PyTorch, and pretends to be rank 0 of `ranks`."""
    trainings: list[PlainTraining] = []

    def of(accelerator: Accelerator) -> PlainTraining:
        for one in trainings:
            if one.accelerator is accelerator:
                return one
        trainings.append(PlainTraining(accelerator, ranks, checker))
        return trainings[-1]

    def prepare(self: Accelerator, *objects: Any, device_placement: Any = None) -> Any:
        # models first, schedulers last, as they find their optimizers and parameters by name
        ready = {place: of(self).prepare(one) for place, one in enumerate(objects)}
        return ready[0] if len(objects) == 1 else tuple(ready.values())

    def prepare_one(self: Accelerator, one: Any, *_: Any, ending: Any = None, **__: Any) -> Any:
        return of(self).prepare(one, getattr(ending, "value", ending))

    @contextmanager
    def accumulate(self: Accelerator, *_: nn.Module) -> Iterator[None]:
        of(self).begin()
        yield

    def nothing(*_: Any, **__: Any) -> Any:
        return nullcontext()

    def silence(*_: Any, **__: Any) -> None:
        """Does nothing."""

    def set_due(self: Accelerator, due: bool) -> None:
        of(self).window.due = due

    made = Accelerator.__init__

    @wraps(made)
    def make(self: Accelerator, *args: Any, **kwargs: Any) -> None:
        asked = signature(made).bind(self, *args, **kwargs).arguments
        made(**{**asked, "mixed_precision": "no", "fp16": False, "cpu": True, "strategy": AUTO})

    facade: dict[str, Any] = {
        "__init__": make,
        "prepare": prepare,
        **dict.fromkeys(
            ("prepare_model", "prepare_optimizer", "prepare_data_loader", "prepare_scheduler"), prepare_one
        ),
        "backward": lambda self, loss, *, weight=None, **kwargs: of(self).backward(loss, weight, **kwargs),
        "accumulate": accumulate,
        **dict.fromkeys(("no_sync", "trigger_sync_in_backward", "join_uneven_inputs", "autocast"), nothing),
        **dict.fromkeys(("unscale_gradients", "save_model", "save"), silence),
        "clip_grad_norm_": lambda self, parameters, max_norm, norm_type=2.0: of(self).clip(
            parameters, max_norm, norm_type
        ),
        "clip_grad_value_": lambda self, parameters, clip_value: of(self).clip_value(parameters, clip_value),
        "sync_gradients": property(lambda self: of(self).window.due, set_due),
        "optimizer_step_was_skipped": property(lambda self: bool(of(self).skipped)),
        "last_loss": property(lambda self: of(self).last_loss),
        "num_processes": property(lambda self: ranks),
        "skip_first_batches": lambda self, loader, num_batches=0: loader.without_first(num_batches),
    }
    with replaced(Accelerator, facade):
        yield trainings
