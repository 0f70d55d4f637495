"""Compare gradients of steps that nothing has exchanged, because no loss came through `accelerator.backward`."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import torch
from accel_amp.optimizer_parameters import parameters_of
from accel_amp.step_hook import call_before_steps
from accel_comm import Transport
from torch import nn
from torch.optim import Optimizer

from accel_parallel.forwarding_container import ForwardingContainer
from accel_parallel.rebind import PREPARE_IT

if TYPE_CHECKING:
    from accel_parallel.missed_gradients import MissedGradients

#: steps of one optimizer, among those without a loss, whose gradients are compared: a loop goes on as it began
COMPARED = 3


@dataclass
class _Seen:
    """The newest step of an optimizer, as far as losses go."""

    optimizer: weakref.ref[Optimizer]
    #: the number of losses at that step
    losses: int = -1
    #: how many of its steps are still compared
    compared: int = COMPARED


@final
class StepsWithoutLoss:
    """A check before each step, which compares the gradients of ranks if no loss came since the last step.

    `torch.autograd.grad`, `loss.backward()` past a container, or a second time: ranks would drift apart. Gradients that
    the script has averaged by itself are equal, and pass. An optimizer that was not prepared is looked at once.

    Args:
        losses: Counter of losses.
        transport: Transport of the ranks.
    """

    def __init__(self, losses: MissedGradients, transport: Transport) -> None:
        self._losses, self._transport = weakref.ref(losses), transport
        self._models: Sequence[nn.Module] = []
        self._seen: dict[int, _Seen] = {}  # by the identity of an optimizer, which each step looks up
        call_before_steps(self._look)

    def begin(self, models: Sequence[nn.Module]) -> None:
        """Begin to check the optimizers of these models."""
        self._models = models

    def _look(self, optimizer: Optimizer) -> None:
        losses = self._losses()
        if losses is None:
            return
        seen = self._seen.get(id(optimizer))
        if seen is None or seen.optimizer() is not optimizer:
            self._seen = {key: one for key, one in self._seen.items() if one.optimizer() is not None}
            seen = self._seen[id(optimizer)] = _Seen(weakref.ref(optimizer))
            self._refuse_unprepared(optimizer, losses)
        if seen.losses != losses.losses:
            seen.losses = losses.losses
        elif seen.compared:
            seen.compared -= 1
            self._compare(optimizer, losses)

    def _refuse_unprepared(self, optimizer: Optimizer, losses: MissedGradients) -> None:
        strange = losses.strange(losses.late_of(self._models, parameters_of(optimizer)))
        if strange:
            raise RuntimeError(
                f"this {type(optimizer).__name__} is not prepared, and holds {len(strange)} parameters that came to a"
                f" prepared model later: each rank would train them alone. {PREPARE_IT}"
            )

    def _compare(self, optimizer: Optimizer, losses: MissedGradients) -> None:
        containers = [model for model in self._models if isinstance(model, ForwardingContainer)]
        if any(container.keeps or container.joins for container in containers):
            return
        held = parameters_of(optimizer)
        shared = {id(one) for one in losses.late_of(self._models, held)}.union(*(one.exchanged for one in containers))
        gradients: list[Any] = [one.grad for one in held if id(one) in shared and one.grad is not None]
        if not gradients:
            return
        norms = torch.stack([gradient.norm().double() for gradient in gradients]).cpu().numpy().tobytes()
        what = "gradients of a step without accelerator.backward"
        if self._transport.agree(what, hashlib.sha256(norms).digest()[:16]) is None:
            raise RuntimeError(
                f"{type(optimizer).__name__}.step: ranks have unlike gradients, and no loss came through"
                " accelerator.backward since its last step. loss.backward() and torch.autograd.grad average what"
                " torch's container sends, and nothing else; call accelerator.backward(loss), or average by"
                ' parameter.grad = accelerator.reduce(gradient, "mean")'
            )
