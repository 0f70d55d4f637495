"""The strategy of one process, which spreads nothing."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, final

import torch
from accel_amp import Precision, PrecisionPolicy
from accel_state import AccumulationState, Run
from torch import nn
from torch.nn.utils import clip_grad_norm_, get_total_norm

from accel_parallel.strategy import Strategy

_NOTHING = nullcontext()


@final
class SingleProcess(Strategy):
    """One process trains the whole model; nothing is wrapped."""

    name: ClassVar[str] = "single"

    def check(self, run: Run, precision: Precision) -> Sequence[str]:
        """A reason if there are more processes."""
        if run.topology.world_size > 1:
            return [f"it is for one process, and this job has {run.topology.world_size}; use ddp"]
        return []

    def setup(self, model: nn.Module, run: Run, policy: PrecisionPolicy) -> nn.Module:
        """The model itself. Collective: no other rank exists."""
        return model

    def unwrap(self, model: nn.Module) -> nn.Module:
        """The model itself."""
        return model

    def joining(self, models: Iterable[nn.Module], windows: AccumulationState | None) -> AbstractContextManager[None]:
        """Does nothing: no rank waits."""
        return nullcontext()

    def synchronising(self, model: nn.Module, *, enabled: bool) -> AbstractContextManager[None]:
        """Does nothing: no gradient travels."""
        return _NOTHING

    def synchronising_backward(self, model: nn.Module) -> AbstractContextManager[None]:
        """Does nothing: no gradient travels."""
        return nullcontext()

    def total_norm(self, gradients: Sequence[torch.Tensor], kind: float = 2.0) -> torch.Tensor:
        """The norm, by torch's own function. Collective: no rank waits for others."""
        return get_total_norm(gradients, kind)

    def clip_norm(self, parameters: Iterable[torch.Tensor], max_norm: float, *, kind: float = 2.0) -> torch.Tensor:
        """The norm, by torch's own function."""
        return clip_grad_norm_(parameters, max_norm, kind)


STRATEGY = SingleProcess
