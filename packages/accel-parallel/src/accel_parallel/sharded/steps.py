"""Make gradients and optimizer steps of parameters of which each rank holds a part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar, final

import torch
from accel_amp import AcceleratedOptimizer, LossScaler
from accel_comm import Transport
from torch import nn
from torch.optim import Optimizer

from accel_parallel.clip import clip_sharded_norm, sharded_norm, with_gradients
from accel_parallel.invariants import refuse_strangers
from accel_parallel.sharded.loaded_state import divide_loaded_state
from accel_parallel.sharded.model_exchanges import ModelExchanges
from accel_parallel.steps import Steps
from accel_parallel.torch_steps import TorchSteps


@final
class ShardedSteps(Steps):
    """The gradients and steps of parts, made by torch, with a look at what all parts together come to."""

    refusals: ClassVar[Mapping[str, str]] = {
        "local steps (LocalSGD)": "each rank holds a part of each parameter, and cannot train alone; leave LocalSGD"
        " out, or use strategy='ddp'"
    }

    def __init__(self) -> None:
        self.torch = TorchSteps()
        #: the exchanges and checks of each model
        self.models: list[ModelExchanges] = []

    def meet(self, objects: Sequence[Any], models: Sequence[nn.Module]) -> None:
        """Raise if an optimizer has parameters of none of the models.

        Raises:
            BrokenInvariant: Nothing would keep such parameters equal on all ranks.
        """
        refuse_strangers([given for given in objects if isinstance(given, Optimizer)], models)

    def optimizer(
        self, optimizer: Optimizer, models: Sequence[nn.Module], make: Callable[..., AcceleratedOptimizer]
    ) -> AcceleratedOptimizer:
        """Return the optimizer, which divides states that it loads, and has to prove its first step.

        Args:
            optimizer: The optimizer of the script.
            models: The prepared models.
            make: `AcceleratedOptimizer`, with its other arguments.

        Raises:
            BrokenInvariant: It has parameters of none of the models.
        """
        refuse_strangers([optimizer], models)
        ready = make(optimizer, unproven=True)
        divide_loaded_state(optimizer)
        return ready

    def scheduler(self, scheduler: Any) -> Any:
        """Return the schedule itself."""
        return scheduler

    def loss_scaler(self, make: Callable[..., LossScaler], transport: Transport) -> LossScaler | None:
        """Return a scaler that tells all ranks of parts that overflowed.

        Collective:
            No rank waits for others.
        """

        def spread(number: torch.Tensor) -> None:
            number.copy_(transport.all_reduce(number, "max"))

        return make(spread=spread)

    def backward(
        self,
        loss: torch.Tensor,
        models: Sequence[nn.Module],
        optimizers: Sequence[AcceleratedOptimizer],
        *,
        due: bool,
        **kwargs: Any,
    ) -> None:
        """Call torch's backward, which reduces gradients to parts.

        Args:
            loss: The loss, scaled already.
            models: The prepared models.
            optimizers: The prepared optimizers.
            due: Whether an optimizer step comes next.
            **kwargs: Arguments of torch's `backward`.

        Raises:
            UnlikeParameters: Ranks have used different parameters.

        Collective:
            Every rank must call.
        """
        with ExitStack() as stack:
            for exchanges in self.models:
                stack.enter_context(exchanges.backward(due=due))
            self.torch.backward(loss, models, optimizers, due=due, **kwargs)

    def adopt(self, models: Sequence[nn.Module], parameters: Sequence[torch.Tensor]) -> None:
        """Make parameters equal on all ranks that were put into a model after it was sharded.

        Collective:
            Every rank must call.
        """
        self.torch.adopt(models, parameters)

    def forget(self) -> None:
        """Forget the exchanges and checks of all models.

        Collective:
            No rank waits for others.
        """
        self.models.clear()

    def settle_gradients(self) -> None:
        """Close a window: average the gradients of parameters that every rank holds whole, and those of copies.

        Collective:
            Every rank must call.
        """
        for exchanges in self.models:
            exchanges.average()

    def total_norm(self, gradients: Sequence[torch.Tensor], kind: float = 2.0) -> torch.Tensor:
        """Return the norm, each part counted once.

        Collective:
            Every rank must call.
        """
        self.settle_gradients()
        return sharded_norm(gradients, kind)

    def clip_norm(self, parameters: Iterable[torch.Tensor], max_norm: float, *, kind: float = 2.0) -> torch.Tensor:
        """Return the norm of all gradients, each part counted once, and clip it.

        Args:
            parameters: The parameters with the gradients.
            max_norm: The limit.
            kind: The exponent of the norm.

        Raises:
            ValueError: This rank has no gradients.

        Collective:
            Every rank must call.
        """
        held = with_gradients(parameters, "clip_grad_norm_")
        self.settle_gradients()
        return clip_sharded_norm(held, max_norm, kind=kind)
