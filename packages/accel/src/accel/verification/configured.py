"""Runs a script with the real Accelerator, and records what its optimizers see."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, final

import torch
from accel_amp import AcceleratedOptimizer, AcceleratedScheduler
from accel_data import DataLoaderShard
from torch import nn
from torch.optim import Optimizer

from accel.accelerator import Accelerator
from accel.verification import sight
from accel.verification.calm import replaced
from accel.verification.record import End, Event, Writer
from accel.verification.round_trip import model_changes, optimizer_changes, scheduler_changes
from accel.verification.stopping import Limit


@final
class Recorder:
    """Watches optimizers from inside: by torch's own hooks, which run when and only when they step."""

    def __init__(self, writer: Writer, limit: Limit) -> None:
        self.writer = writer
        self.limit = limit
        self.accelerators: list[Accelerator] = []
        self.models: list[tuple[Accelerator, nn.Module]] = []
        self.optimizers: list[AcceleratedOptimizer] = []
        self.schedulers: list[AcceleratedScheduler] = []
        self.loaders = 0
        self._pending: tuple[Event, dict[str, torch.Tensor]] | None = None
        self._losses: list[torch.Tensor] = []
        self._weights: list[float] | None = None

    def prepared(self, accelerator: Accelerator, ready: Any) -> None:
        """Takes note of what `prepare` returned."""
        if accelerator not in self.accelerators:
            self.accelerators.append(accelerator)
        for one in ready if isinstance(ready, tuple) else (ready,):
            if isinstance(one, nn.Module) and not any(one is known for _, known in self.models):
                self.models.append((accelerator, one))
            elif isinstance(one, AcceleratedOptimizer) and not any(one is known for known in self.optimizers):
                self._watch(one)
            elif isinstance(one, AcceleratedScheduler) and not any(one is known for known in self.schedulers):
                self.schedulers.append(one)
            elif isinstance(one, DataLoaderShard):
                self.loaders += 1

    def loss(self, loss: torch.Tensor, weight: torch.Tensor | float | None) -> None:
        """Takes note of the loss of a micro-batch."""
        self._losses.append(loss.detach())
        if weight is not None:
            self._weights = [*(self._weights or []), float(weight)]

    def stepped(self, optimizer: AcceleratedOptimizer, events: int) -> None:
        """Takes note of a step that was asked for and skipped, given how many had been made before."""
        if not (optimizer.clock.due and optimizer.step_was_skipped):
            return
        if self.limit.made == events:
            number = next(place for place, one in enumerate(self.optimizers) if one is optimizer)
            self._begin(number, optimizer.optimizer)
            self.limit.made += 1
        self.limit.skipped += 1
        if self._pending is not None:
            self._pending[0].skipped = True
            self._pending[0].overflowed = sight.overflowed(optimizer.optimizer)

    def finish(self) -> None:
        """Writes how the run ended, and on rank 0 what a round trip changes. Nobody waits for anybody."""
        self._flush()
        rates = [sight.rates(one.optimizer) for one in self.optimizers]
        changed = self._round_trip() if self.writer.keeps_tensors and self.writer.events else []
        self.writer.end(
            End(
                events=self.writer.events,
                optimizers=len(self.optimizers),
                precision=self.accelerators[0].mixed_precision if self.accelerators else "no",
                device=self.accelerators[0].device.type if self.accelerators else "cpu",
                loaders=self.loaders,
                rates=rates,
                changed=changed,
            )
        )

    def _watch(self, ready: AcceleratedOptimizer) -> None:
        number = len(self.optimizers)
        self.optimizers.append(ready)
        self.limit.optimizers += 1
        ready.optimizer.register_step_pre_hook(lambda raw, *_: self._begin(number, raw))
        ready.optimizer.register_step_post_hook(lambda raw, *_: self._done(raw))

    def _names(self) -> dict[int, str]:
        return sight.names_of([accelerator.unwrap_model(model) for accelerator, model in self.models])

    def _begin(self, number: int, raw: Optimizer) -> None:
        self._flush()
        names = self._names()
        losses = [float(loss) for loss in self._losses]
        event = Event(number, losses, self._weights, sight.rates(raw), dtypes=sight.dtypes(raw, names))
        tensors = {f"gradient {name}": one for name, one in sight.gradients(raw, names).items()}
        tensors |= {f"before {name}": one for name, one in sight.parameters(raw, names).items()}
        self._pending = event, tensors
        self._losses, self._weights = [], None

    def _done(self, raw: Optimizer) -> None:
        if self._pending is not None:
            event, tensors = self._pending
            names = self._names()
            event.dtypes |= sight.dtypes(raw, names)
            tensors |= {f"after {name}": one for name, one in sight.parameters(raw, names).items()}
        self.limit.made += 1

    def _flush(self) -> None:
        if self._pending is not None:
            self.writer.event(*self._pending)
            self._pending = None

    def _round_trip(self) -> list[str]:
        changed = []
        for accelerator, model in self.models:
            inner = accelerator.unwrap_model(model)
            changed += model_changes(inner, lambda folder, a=accelerator, m=model: SAVE_MODEL(a, m, folder))  # type: ignore[misc]
        for one in self.optimizers:
            changed += optimizer_changes(one.optimizer, one)
        for schedule in self.schedulers:
            changed += scheduler_changes(schedule.scheduler, schedule)
        return changed


SAVE_MODEL = Accelerator.save_model


def _nothing(*_: Any, **__: Any) -> None:
    """Files of the user's are not for a trial to write over."""


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """In this block every Accelerator tells the recorder what it does."""

    def noting(original: Callable[..., Any]) -> Callable[..., Any]:
        def prepare(self: Accelerator, *args: Any, **kwargs: Any) -> Any:
            ready = original(self, *args, **kwargs)
            recorder.prepared(self, ready)
            return ready

        return prepare

    def backward(self: Accelerator, loss: torch.Tensor, *, weight: Any = None, **kwargs: Any) -> None:
        recorder.limit.check()
        recorder.loss(loss, weight)
        original_backward(self, loss, weight=weight, **kwargs)

    def step(self: AcceleratedOptimizer, closure: Any = None) -> Any:
        events = recorder.limit.made
        result = original_step(self, closure)
        recorder.stepped(self, events)
        return result

    def stopping(original: Callable[..., Any]) -> Callable[..., Any]:
        def iterate(self: Any) -> Iterator[Any]:
            for batch in original(self):
                recorder.limit.check()
                yield batch

        return iterate

    original_backward, original_step = Accelerator.backward, AcceleratedOptimizer.step
    prepares = ("prepare", "prepare_model", "prepare_optimizer", "prepare_data_loader", "prepare_scheduler")
    with ExitStack() as stack:
        facade: dict[str, Any] = {name: noting(getattr(Accelerator, name)) for name in prepares}
        facade |= {"backward": backward, "save_model": _nothing, "save": _nothing}
        stack.enter_context(replaced(Accelerator, facade))
        stack.enter_context(replaced(AcceleratedOptimizer, {"step": step}))
        stack.enter_context(replaced(DataLoaderShard, {"__iter__": stopping(DataLoaderShard.__iter__)}))
        yield
