"""Every process holds the whole model; gradients are averaged (DistributedDataParallel)."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import ClassVar, cast, final

from accel_amp import Precision
from accel_state import Run
from torch import nn
from torch.distributed.algorithms.join import Join, Joinable
from torch.nn.parallel import DistributedDataParallel

from accel_parallel.strategies._replicated import Replicated


@final
class Ddp(Replicated):
    """torch's DistributedDataParallel around the model."""

    name: ClassVar[str] = "ddp"

    def __init__(self, *, find_unused_parameters: bool = False, static_graph: bool = False) -> None:
        self.find_unused_parameters = find_unused_parameters
        self.static_graph = static_graph

    def check(self, run: Run, precision: Precision) -> Sequence[str]:
        """No reason: it runs wherever a process group does."""
        return []

    def setup(self, model: nn.Module, run: Run) -> nn.Module:
        """The model in DistributedDataParallel, its parameters and buffers those of rank 0.

        A model without trainable parameters has no gradients to exchange: it is returned as it is, but made equal too.

        Collective: every rank must call.
        """
        if not any(parameter.requires_grad for parameter in model.parameters()):
            for tensor in chain(model.parameters(), model.buffers()):
                tensor.data.copy_(run.transport.broadcast(tensor.data, 0))
            return model
        device_ids = None if run.placed_on.type == "cpu" else [run.placed_on]
        return DistributedDataParallel(
            model,
            device_ids=device_ids,
            find_unused_parameters=self.find_unused_parameters,
            static_graph=self.static_graph,
        )

    def unwrap(self, model: nn.Module) -> nn.Module:
        """The model inside DistributedDataParallel."""
        return model.module if isinstance(model, DistributedDataParallel) else model

    def joining(self, models: Iterable[nn.Module]) -> AbstractContextManager[None]:
        """torch's Join over the containers. Collective: every rank must enter and leave it."""
        containers: list[Joinable] = [model for model in models if isinstance(model, DistributedDataParallel)]
        return cast("AbstractContextManager[None]", Join(containers)) if containers else nullcontext()

    def synchronising(self, model: nn.Module, *, enabled: bool) -> AbstractContextManager[None]:
        """The container's `no_sync`, unless gradients have to travel."""
        if enabled or not isinstance(model, DistributedDataParallel):
            return nullcontext()
        return model.no_sync()


STRATEGY = Ddp
