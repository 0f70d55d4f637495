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
    """How parameters and gradients are spread over processes. A run has exactly one strategy."""

    name: ClassVar[str]
    #: the class of its options; None if it takes none
    options_type: ClassVar[type | None] = None
    #: the axes of the mesh along which it divides models; a mesh is made for it if the script asks for none
    axes: ClassVar[tuple[Axis, ...]] = ()
    #: whether `setup` moves models to the device, part by part, so that they come as the script made them
    moves_models: ClassVar[bool] = False
    #: whether parameters are sharded by torch's fully_shard
    is_fsdp2: ClassVar[bool] = False
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
        """Every reason why the strategy cannot run, in words."""

    @abstractmethod
    def setup(self, model: nn.Module, run: Run, policy: PrecisionPolicy) -> nn.Module:
        """The model, sharded, or in the container that exchanges its gradients; forwards compute by `policy`.

        Collective: every rank must call.
        """

    @abstractmethod
    def unwrap(self, model: nn.Module) -> nn.Module:
        """The model that `setup` was given."""

    @abstractmethod
    def synchronising(self, model: nn.Module, *, enabled: bool) -> AbstractContextManager[None]:
        """The context of a forward and backward whose gradients travel, or stay on their process."""

    @abstractmethod
    def synchronising_backward(self, model: nn.Module) -> AbstractContextManager[None]:
        """The context of a backward whose gradients travel, although its forward was not to synchronise."""

    @abstractmethod
    def joining(self, models: Iterable[nn.Module], windows: AccumulationState | None) -> AbstractContextManager[None]:
        """The context in which ranks may have unequal numbers of batches: ranks that end first take part in exchanges.

        The accumulation state's `windows` of several micro-batches end on all ranks when the data of one of them do.
        """
