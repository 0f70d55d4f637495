"""What strategies of one process have in common: nothing travels between processes."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import final

import torch
from accel_state import AccumulationState
from torch import nn
from torch.nn.utils import clip_grad_norm_, get_total_norm

from accel_parallel.strategy import Strategy

_NOTHING = nullcontext()


class OneProcess(Strategy):
    """A strategy of one process, which holds all gradients."""

    @final
    def unwrap(self, model: nn.Module) -> nn.Module:
        """The model itself."""
        return model

    @final
    def joining(self, models: Iterable[nn.Module], windows: AccumulationState | None) -> AbstractContextManager[None]:
        """Does nothing: no rank waits."""
        return nullcontext()

    @final
    def synchronising(self, model: nn.Module, *, enabled: bool) -> AbstractContextManager[None]:
        """Does nothing: no gradient travels."""
        return _NOTHING

    @final
    def synchronising_backward(self, model: nn.Module) -> AbstractContextManager[None]:
        """Does nothing: no gradient travels."""
        return nullcontext()

    @final
    def settle_gradients(self) -> None:
        """Does nothing: gradients are complete. Collective: no rank waits for others."""

    @final
    def total_norm(self, gradients: Sequence[torch.Tensor], kind: float = 2.0) -> torch.Tensor:
        """The norm, by torch's own function. Collective: no rank waits for others."""
        return get_total_norm(gradients, kind)

    @final
    def clip_norm(self, parameters: Iterable[torch.Tensor], max_norm: float, *, kind: float = 2.0) -> torch.Tensor:
        """The norm, by torch's own function."""
        return clip_grad_norm_(parameters, max_norm, kind)
