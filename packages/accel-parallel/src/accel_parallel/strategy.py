"""The base of strategies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Self

from accel_amp import Precision, PrecisionPolicy
from accel_state import AccumulationState, Run
from accel_state.mesh import Axis
from torch import nn

from accel_parallel.steps import Steps
from accel_parallel.strategy_options import Asked


class Strategy(ABC):
    """The base of strategies, which spread parameters and gradients over processes. A run has exactly one."""

    name: ClassVar[str]
    #: the class of its options; None if it takes none
    options_type: ClassVar[type | None] = None
    #: the axes of the mesh along which it divides models; a mesh is made for it if the script asks for none
    axes: ClassVar[tuple[Axis, ...]] = ()
    #: whether `setup` moves models to the device, part by part, so that they come as the script made them
    moves_models: ClassVar[bool] = False
    #: whether parameters are sharded by torch's fully_shard
    is_fsdp2: ClassVar[bool] = False
    #: whether it averages gradients over processes that have parts of the same sequences
    shares_sequences: ClassVar[bool] = False
    #: what has to be done before the process touches its device
    begin: ClassVar[Callable[[], None] | None] = None
    #: how gradients and optimizer steps are made
    steps: Steps

    @classmethod
    @abstractmethod
    def made(cls, options: Any, asked: Asked) -> Self:
        """Return the strategy for its options, which are None if the script gives none.

        Args:
            options: An object of `options_type`.
            asked: What the script asks for besides.
        """

    @abstractmethod
    def check(self, run: Run, precision: Precision) -> Sequence[str]:
        """Return every reason why the strategy cannot run, in words."""

    @abstractmethod
    def setup(self, model: nn.Module, run: Run, policy: PrecisionPolicy) -> nn.Module:
        """Shard a model, or put it into the container that exchanges its gradients.

        Args:
            model: The model.
            run: The current run.
            policy: Dtypes of forwards.

        Returns:
            The model to train.

        Collective:
            Every rank must call.
        """

    @abstractmethod
    def unwrap(self, model: nn.Module) -> nn.Module:
        """Return the model that `setup` was given."""

    @abstractmethod
    def synchronising(self, model: nn.Module, *, enabled: bool) -> AbstractContextManager[None]:
        """Return the context of a forward and backward.

        Args:
            model: The prepared model.
            enabled: Whether gradients are exchanged. Otherwise they stay on their process.
        """

    @abstractmethod
    def synchronising_backward(self, model: nn.Module) -> AbstractContextManager[None]:
        """Return the context of a backward that exchanges gradients, although its forward was not to synchronise."""

    @abstractmethod
    def joining(self, models: Iterable[nn.Module], windows: AccumulationState | None) -> AbstractContextManager[None]:
        """Return the context in which ranks may have unequal numbers of batches.

        Ranks that end first take part in the exchanges of the others.

        Args:
            models: Prepared models.
            windows: State of accumulation, whose windows of several micro-batches end on all ranks when the data of one
                of them do.
        """
