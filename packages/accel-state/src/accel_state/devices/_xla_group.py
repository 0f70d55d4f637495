"""Exchange tensors of XLA by the runtime of torch_xla, and those of the CPU by gloo, in one process group.

torch lets torch_xla's own group replace the whole one, and then nothing exchanges tensors of the CPU. Here all ranks
compile the same graph, as the runtime demands: what differs between them is data. The runtime numbers devices in an
order of its own, on which nothing depends.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


@functools.cache
def register() -> str:
    """Let torch know the backend, and return its name."""
    import torch
    import torch.distributed as dist

    base: Any = dist.ProcessGroup  # its methods have more forms than torch calls

    class XlaGroup(base):  # type: ignore[misc]
        """A group of all ranks, whose methods functions such as `torch.distributed.all_reduce` call."""

        def __init__(self, store: Any, rank: int, size: int, timeout: Any) -> None:
            super().__init__(rank, size)
            gloo = dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
            self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
            self._own = [other == rank for other in range(size)]

        def allreduce(self, tensors: Any, options: Any = None) -> Any:
            """Combine tensors in place."""
            if tensors[0].device.type == "cpu":
                return super().allreduce(tensors, options)
            return _done([tensor.copy_(_combined(tensor, options.reduceOp, self.size())) for tensor in tensors])

        def broadcast(self, tensors: Any, options: Any) -> Any:
            """Fill tensors with those of a rank."""
            if tensors[0].device.type == "cpu":
                return super().broadcast(tensors, options)
            sends = [self.rank() == options.rootRank]
            return _done([tensor.copy_(_rows(tensor, sends, self.size())[0]) for tensor in tensors])

        def _allgather_base(self, output: Tensor, given: Tensor, options: Any) -> Any:
            if given.device.type == "cpu":
                return super()._allgather_base(output, given, options)
            return _done([output.copy_(_rows(given, self._own, self.size()).view_as(output))])

    dist.Backend.register_backend("xla_gloo", XlaGroup, devices=["cpu", "xla"])
    return "xla_gloo"


def _rows(x: Tensor, sent: Sequence[bool], size: int) -> Tensor:
    """Return as many rows of the form of `x` as `sent` has, each from the rank that sends it."""
    import torch
    import torch.distributed as dist

    # no tensor without dims, which would be a constant of the graph
    chosen = torch.tensor(sent, device="cpu").to(x.device).view(-1, *[1] * x.dim())
    return _combined(torch.where(chosen, x, torch.zeros_like(x)), dist.ReduceOp.SUM, size)


def _combined(x: Tensor, how: Any, size: int) -> Tensor:
    import torch
    import torch.distributed as dist
    import torch_xla.core.xla_model
    from torch_xla import runtime

    ops = dist.ReduceOp
    kinds = [kind for kind, op in (("sum", ops.SUM), ("max", ops.MAX), ("min", ops.MIN)) if how == op]
    if not kinds or size != runtime.world_size():
        raise NotImplementedError(
            "tensors on XLA are exchanged among all ranks, and combined by sum, max or min; move them to the CPU"
        )
    numbers = x.byte() if x.dtype == torch.bool else x
    combined: Tensor = torch_xla.core.xla_model.all_reduce(kinds[0], numbers, pin_layout=False)
    return combined


def _done(tensors: list[Tensor]) -> Any:
    import torch

    bindings: Any = torch._C._distributed_c10d
    future: Any = torch.futures.Future()
    future.set_result(tensors)
    return bindings._create_work_from_future(future)
