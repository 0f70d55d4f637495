"""Do nothing between processes: what strategies of one process have in common."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self, final

from accel_state import AccumulationState
from torch import nn

from accel_parallel.strategy import Strategy
from accel_parallel.strategy_options import Asked
from accel_parallel.torch_steps import TorchSteps

_NOTHING = nullcontext()


class OneProcess(Strategy):
    """A strategy of one process, which holds all gradients."""

    def __init__(self) -> None:
        self.steps = TorchSteps()

    @final
    @classmethod
    def made(cls, options: Any, asked: Asked) -> Self:
        """Return the strategy, which takes no options."""
        return cls()

    @final
    def unwrap(self, model: nn.Module) -> nn.Module:
        """Return the model itself."""
        return model

    @final
    def joining(self, models: Iterable[nn.Module], windows: AccumulationState | None) -> AbstractContextManager[None]:
        """Do nothing, as no rank waits."""
        return nullcontext()

    @final
    def synchronising(self, model: nn.Module, *, enabled: bool) -> AbstractContextManager[None]:
        """Do nothing, as no gradient is exchanged."""
        return _NOTHING

    @final
    def synchronising_backward(self, model: nn.Module) -> AbstractContextManager[None]:
        """Do nothing, as no gradient is exchanged."""
        return nullcontext()
