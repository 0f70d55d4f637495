"""Arguments that scripts hand on to parts of torch, and those of DistributedDataParallel."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from accel_parallel.comm_hooks import CommHook


class KwargsHandler:
    """Arguments for something of torch's."""

    def problems(self) -> list[str]:
        """What is wrong with them, in words."""
        return []

    def to_dict(self) -> dict[str, Any]:
        """All of them."""
        return dict(vars(self))

    def to_kwargs(self) -> dict[str, Any]:
        """Those that are not the default."""
        usual = type(self)().to_dict()
        return {name: value for name, value in self.to_dict().items() if value != usual[name]}


@dataclass
class DistributedDataParallelKwargs(KwargsHandler):
    """How DistributedDataParallel is built, and in which form its gradients travel.

    `comm_state_option` are arguments of torch's PowerSGDState, such as matrix_approximation_rank.
    """

    dim: int = 0
    broadcast_buffers: bool = True
    bucket_cap_mb: int | None = None
    find_unused_parameters: bool = False
    check_reduction: bool = False
    gradient_as_bucket_view: bool = False
    static_graph: bool = False
    comm_hook: CommHook | str = CommHook.NO
    comm_wrapper: CommHook | str = CommHook.NO
    comm_state_option: dict[str, Any] = field(default_factory=dict)
