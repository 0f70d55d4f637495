"""End windows of micro-batches together on ranks with unequal numbers of batches."""

from __future__ import annotations

from typing import Any, final

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join, Joinable, JoinHook


@final
class WindowEnd(Joinable):
    """A notice of the end of a window to ranks with batches, the first of the joinables of torch's Join.

    Args:
        device: Device to exchange on.
        group: Process group of the models.
    """

    def __init__(self, device: torch.device, group: Any) -> None:
        super().__init__()
        self._device, self._group = device, group

    def anywhere(self, ends: bool) -> bool:
        """Return whether the data of any rank end with this micro-batch.

        Args:
            ends: Whether those of this rank do.

        Collective:
            Every rank that has batches must call. Those that have none take part in torch's Join.
        """
        Join.notify_join_context(self)
        flag = torch.full((1,), float(ends), device=self._device)
        dist.all_reduce(flag, dist.ReduceOp.MAX, group=self._group)
        return bool(flag.item())

    def join_hook(self, **_: Any) -> JoinHook:
        """Return the hook of a rank without batches, for each micro-batch of the others."""
        return _NothingEnds(self._device, self._group)

    @property
    def join_device(self) -> torch.device:
        """The device of torch's own exchanges."""
        return self._device

    @property
    def join_process_group(self) -> Any:
        """The group of the models."""
        return self._group


class _NothingEnds(JoinHook):
    def __init__(self, device: torch.device, group: Any) -> None:
        self._device, self._group = device, group

    def main_hook(self) -> None:
        """Take part in the exchange."""
        dist.all_reduce(torch.zeros(1, device=self._device), dist.ReduceOp.MAX, group=self._group)
