"""Exchange through torch's default process group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast, final

from accel_state.transports._base import Reduction, Transport

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


@final
class TorchDist(Transport):
    """The default process group of torch.distributed, which must be open."""

    def __init__(self) -> None:
        import torch
        import torch.distributed

        self._torch = torch
        self._dist = torch.distributed
        self.rank = torch.distributed.get_rank()
        self.size = torch.distributed.get_world_size()
        # renamed in torch 2.13, where the old name warns
        names = vars(torch.distributed)
        self._all_gather_tensor = names.get("all_gather_single") or names["all_gather_into_tensor"]
        op = torch.distributed.ReduceOp
        # gloo has no average: sum and divide
        self._ops: dict[Reduction, Any] = {"sum": op.SUM, "mean": op.SUM, "max": op.MAX, "min": op.MIN}

    def __reduce__(self) -> tuple[type[TorchDist], tuple[()]]:
        return TorchDist, ()  # what is pickled with it joins the group of the process that unpickles it

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Every rank's `x`, concatenated in rank order; a 0-d `x` gives a vector of `size`.

        Collective: every rank of the group must call, with equal shapes and dtypes.
        """
        x = x.detach().contiguous()
        if x.ndim == 0:
            x = x.unsqueeze(0)
        out = x.new_empty((self.size * x.shape[0], *x.shape[1:]))
        if out.numel():
            self._all_gather_tensor(out, x)
        return out

    def all_reduce(self, x: torch.Tensor, how: Reduction) -> torch.Tensor:
        """A new tensor, the same on every rank; a mean of whole numbers is a float.

        Collective: every rank of the group must call, with equal shapes and dtypes.
        """
        y = x.detach().clone(memory_format=self._torch.contiguous_format)
        self._dist.all_reduce(y, op=self._ops[how])
        return y / self.size if how == "mean" else y

    def broadcast(self, x: torch.Tensor, source: int) -> torch.Tensor:
        """`x` of rank `source`, on every rank.

        Collective: every rank of the group must call, with equal shapes and dtypes.
        """
        y = x.detach().contiguous()
        self._dist.broadcast(y, src=source)
        return y

    def all_gather_objects(self, value: T) -> list[T]:
        """Every rank's `value`, in rank order; pickled on the way.

        Collective: every rank of the group must call.
        """
        values: list[T | None] = [None] * self.size
        self._dist.all_gather_object(values, value)
        return cast("list[T]", values)

    def broadcast_object(self, value: T, source: int) -> T:
        """The `value` of rank `source`; pickled on the way.

        Collective: every rank of the group must call.
        """
        box = [value]
        self._dist.broadcast_object_list(box, src=source)
        return box[0]

    def barrier(self) -> None:
        """Returns when every rank has called. Collective: every rank of the group must call."""
        self._dist.barrier()
