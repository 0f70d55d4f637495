"""Declare the arguments that scripts hand on to parts of torch, and those of DistributedDataParallel."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from accel_parallel.comm_hooks import CommHook


class KwargsHandler:
    """The base of arguments for a part of torch."""

    def problems(self) -> list[str]:
        """List what is wrong with the arguments."""
        return []

    def to_dict(self) -> dict[str, Any]:
        """Return all arguments."""
        return dict(vars(self))

    def to_kwargs(self) -> dict[str, Any]:
        """Return the arguments that are not the default."""
        usual = type(self)().to_dict()
        return {name: value for name, value in self.to_dict().items() if value != usual[name]}


@dataclass
class DistributedDataParallelKwargs(KwargsHandler):
    """The options of DistributedDataParallel, and of the hook that compresses its gradients.

    Args:
        dim: As in torch's class.
        broadcast_buffers: Whether buffers are those of rank 0 in each forward.
        bucket_cap_mb: Size of the buckets in which gradients are sent, in MiB. By default torch's own.
        find_unused_parameters: Whether a forward may leave parameters unused.
        check_reduction: As in torch's class.
        gradient_as_bucket_view: Whether gradients are views of the buckets, which saves memory.
        static_graph: Whether each forward uses the same parameters in the same way.
        comm_hook: Hook that compresses gradients: "no", "fp16", "bf16", "power_sgd" or "batched_power_sgd".
        comm_wrapper: Hook that it is wrapped in: "no", "fp16" or "bf16".
        comm_state_option: Arguments of torch's PowerSGDState, such as matrix_approximation_rank.
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
