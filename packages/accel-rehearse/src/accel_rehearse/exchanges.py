"""Count the exchanges of tensors between ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.utils._pytree import tree_iter

from accel_rehearse.refusal import frame_of_script, line_of

NAMESPACES = ("c10d", "_c10d_functional")
#: operations of these namespaces that exchange nothing
_LOCAL = ("wait_tensor", "_wrap_tensor_autograd")
#: names of an operation in torch's namespaces, and the field's
_NAMES = {
    "_allgather_base": "all_gather",
    "allgather": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_out": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "alltoall_base": "all_to_all",
    "alltoall": "all_to_all",
    "all_to_all_single": "all_to_all",
}

#: an exchange: its name, the bytes of the whole tensor, the ranks that take part
Exchange = tuple[str, int, tuple[int, ...]]


class ExchangeLog:
    """The exchanges of a rank, in their order."""

    def __init__(self) -> None:
        self.log: list[Exchange] = []
        #: calls that have to be the same on all ranks, with the lines of the script
        self.calls: list[tuple[str, str]] = []
        self._groups: dict[Any, tuple[int, ...]] = {}

    def note(self, func: Any, args: Sequence[Any]) -> None:
        """Take note of an operation of torch's, if it is an exchange.

        Args:
            func: The operation.
            args: Its arguments.
        """
        operation = func._schema.name.partition("::")[2].rstrip("_")
        if operation in _LOCAL:
            return
        name = _NAMES.get(operation, operation)
        functional = func.namespace != "c10d"
        ranks = self._ranks(args, functional=functional)
        if functional:
            size = _bytes(args[0]) * (len(ranks) if name == "all_gather" else 1)
        else:
            size = _bytes(args[1] if name in ("reduce_scatter", "gather", "scatter") else args[0])
        self.log.append((name, size, ranks))
        self.call(name)

    def call(self, name: str) -> None:
        """Take note of a call that all ranks have to make."""
        self.calls.append((name, line_of(frame_of_script())))

    def _ranks(self, args: Sequence[Any], *, functional: bool) -> tuple[int, ...]:
        if functional:
            named = args[-1] if isinstance(args[-1], str) else args[-1].group_name
            group = _resolve_process_group(named)
        else:
            group = next(dist.ProcessGroup.unbox(value) for value in args[1:] if isinstance(value, torch.ScriptObject))
        key = group.group_name
        if key not in self._groups:
            self._groups[key] = tuple(dist.get_process_group_ranks(group))
        return self._groups[key]


def _bytes(tree: Any) -> int:
    return sum(leaf.nbytes for leaf in tree_iter(tree) if isinstance(leaf, torch.Tensor))


def by_name(log: Sequence[Exchange]) -> list[dict[str, Any]]:
    """Return calls and bytes of each kind of exchange, and the number of ranks that take part."""
    calls: Counter[tuple[str, tuple[int, ...]]] = Counter()
    sizes: Counter[tuple[str, tuple[int, ...]]] = Counter()
    for name, size, ranks in log:
        calls[name, ranks] += 1
        sizes[name, ranks] += size
    return [
        {"name": name, "calls": count, "bytes": sizes[name, ranks], "group_size": len(ranks), "ranks": list(ranks)}
        for (name, ranks), count in sorted(calls.items())
    ]
