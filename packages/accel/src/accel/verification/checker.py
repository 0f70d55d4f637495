"""Follows a run of plain PyTorch and holds each of its steps against the recording of the run as configured.

Each step is judged by itself: once its gradient was compared, plain PyTorch goes on with the gradient and the
parameters of the recording, so that rounding does not add up, and a difference is found where it arises.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import final

import torch
from torch import nn
from torch.optim import Optimizer

from accel.verification import compare, sight
from accel.verification.compare import Differs, Found, Tensors
from accel.verification.record import Event, Recording
from accel.verification.stopping import Limit

Comparison = Callable[[], None]


@final
class Checker:
    """Raises Differs at the first thing that differs."""

    def __init__(self, recording: Recording, tolerance: float, *, half: bool, limit: Limit) -> None:
        self.recording = recording
        self.tolerance = tolerance
        self.half = half
        self.limit = limit
        self.found = Found()
        self.models: list[nn.Module] = []
        self.optimizers: list[Optimizer] = []
        self._losses: list[torch.Tensor] = []
        self._weights: list[float] | None = None
        self._tensors: Tensors = {}
        self._before: dict[str, torch.Tensor] = {}
        self._ranks: list[Event] = []

    def watch(self, optimizer: Optimizer) -> None:
        """Looks on when the optimizer steps."""
        number = len(self.optimizers)
        self.optimizers.append(optimizer)
        self.limit.optimizers += 1
        optimizer.register_step_pre_hook(lambda raw, *_: self._before_step(number, raw))
        optimizer.register_step_post_hook(lambda raw, *_: self._after_step(raw))

    def loss(self, loss: torch.Tensor, weight: torch.Tensor | float | None) -> None:
        """Takes note of the loss of a micro-batch."""
        self._losses.append(loss.detach())
        if weight is not None:
            self._weights = [*(self._weights or []), float(weight)]

    def skips(self, optimizer: Optimizer) -> bool:
        """Whether the step that is due was skipped as configured, and rightly so."""
        if self.limit.made >= self.recording.events:
            return False
        ranks = self.recording.event(self.limit.made + 1)
        if not ranks[0].skipped:
            return False
        number = next(place for place, one in enumerate(self.optimizers) if one is optimizer)
        self._at(lambda: compare.micro_batches(ranks, len(self._losses), number))
        self._at(lambda: compare.learning_rates(ranks[0].rates, sight.rates(optimizer)))
        self.found.skipped.append(self.limit.made + 1)
        self.limit.skipped += 1
        self._losses, self._weights = [], None
        self.limit.made += 1
        return True

    def finish(self) -> None:
        """Compares how the two runs ended.

        Raises: Differs.
        """
        recording, ends = self.recording, self.recording.ends
        for rank, end in enumerate(ends):
            if end.events != recording.events:
                raise Differs(f"rank 0 made {recording.events} optimizer steps, and rank {rank} {end.events}")
        if self.limit.made != recording.events:
            raise Differs(
                f"{recording.events} optimizer steps were made as configured, {self.limit.made} in plain PyTorch"
            )
        for number, optimizer in enumerate(self.optimizers):
            recorded, mine = ends[0].rates[number], sight.rates(optimizer)
            self._at(partial(compare.learning_rates, recorded, mine), "after step")
        if ends[0].changed:
            several = f", and {len(ends[0].changed) - 1} more" if len(ends[0].changed) > 1 else ""
            raise Differs(f"a save and load round trip changes {ends[0].changed[0]}{several}")

    def _before_step(self, number: int, raw: Optimizer) -> None:
        step = self.limit.made + 1
        if step > self.recording.events:
            raise Differs(f"step {step} is made in plain PyTorch, and not as configured")
        names = sight.names_of(self.models)
        self._ranks, self._tensors = self.recording.event(step), self.recording.tensors(step)
        plain = Event(number, [float(loss) for loss in self._losses], self._weights, sight.rates(raw))
        gradients = {f"gradient {name}": one for name, one in sight.gradients(raw, names).items()}
        starts = {f"before {name}": one for name, one in sight.parameters(raw, names).items()}
        self._losses, self._weights = [], None

        def compared() -> None:
            ranks, tensors = self._ranks, self._tensors
            compare.micro_batches(ranks, len(plain.losses), number)
            compare.learning_rates(ranks[0].rates, plain.rates)
            mine = sight.dtypes(raw, names)
            compare.formats({n: f for n, f in ranks[0].dtypes.items() if n in mine or " of " not in n}, mine)
            compare.same_on_all_ranks(ranks, "before ")
            compare.starts(tensors, starts)
            compare.losses(ranks, plain, self.tolerance, self.found)
            compare.same_on_all_ranks(ranks, "gradient ")
            compare.gradients(tensors, gradients, self.tolerance, self.half, self.found)

        self._at(compared)
        with torch.no_grad():
            for name, one in sight.held(raw, names):
                recorded = self._tensors.get(f"gradient {name}")
                if one.grad is None or not one.grad.is_sparse:
                    one.grad = None if recorded is None else recorded.to(one.dtype)
                one.copy_(self._tensors[f"before {name}"])
        self._before = sight.parameters(raw, names)

    def _after_step(self, raw: Optimizer) -> None:
        names = sight.names_of(self.models)

        def compared() -> None:
            compare.formats(self._ranks[0].dtypes, sight.dtypes(raw, names))
            compare.updates(self._tensors, self._before, sight.parameters(raw, names), self.found)
            compare.same_on_all_ranks(self._ranks, "after ")

        self._at(compared)
        with torch.no_grad():
            for name, one in sight.held(raw, names):
                one.copy_(self._tensors[f"after {name}"])
        self.limit.made += 1

    def _at(self, compared: Comparison, where: str = "step") -> None:
        try:
            compared()
        except Differs as difference:
            step = self.limit.made + (where == "step")
            raise Differs(f"{where} {step}: {difference}") from None
