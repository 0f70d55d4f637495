"""The base of strategies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar

import torch
from accel_amp import Precision, PrecisionPolicy
from accel_state import AccumulationState, Run
from torch import nn

from accel_parallel.engine import Engine
from accel_parallel.engine_options import EngineOptions
from accel_parallel.missed_gradients import MissedGradients


class Strategy(ABC):
    """How parameters and gradients are spread over processes. A run has exactly one strategy."""

    name: ClassVar[str]
    #: whether ranks hold parts of parameters; then `setup` moves them to the device, part by part
    shards: ClassVar[bool] = False
    #: what has to be done before the process touches its device
    begin: ClassVar[Callable[[], None] | None] = None
    #: the class of the options that the strategy's engine takes
    engine_options: ClassVar[type[EngineOptions] | None] = None
    #: what takes backwards and steps in torch's place
    engine: Engine | None = None
    #: what takes backwards of windows that end, and exchanges what nothing else does
    missed: MissedGradients | None = None

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

    @abstractmethod
    def settle_gradients(self) -> None:
        """Completes gradients of which this rank has its own share only, after the last backward of a window.

        Collective: every rank must call.
        """

    @abstractmethod
    def total_norm(self, gradients: Sequence[torch.Tensor], kind: float = 2.0) -> torch.Tensor:
        """The norm of all gradients that this rank holds, or holds parts of. Collective: every rank must call."""

    @abstractmethod
    def clip_norm(self, parameters: Iterable[torch.Tensor], max_norm: float, *, kind: float = 2.0) -> torch.Tensor:
        """The norm of all gradients, the same on every rank. If it exceeds `max_norm`, gradients are scaled down."""
