"""What the strategies share in which every rank holds whole gradients."""

from collections.abc import Iterable

import torch
from torch.nn.utils import clip_grad_norm_

from accel_parallel.strategy import Strategy


class Replicated(Strategy):
    """Every rank holds every gradient whole, so that its norm needs no exchange."""

    def clip_norm(self, parameters: Iterable[torch.Tensor], max_norm: float, *, kind: float = 2.0) -> torch.Tensor:
        """torch's own `clip_grad_norm_`."""
        return clip_grad_norm_(parameters, max_norm, kind)
