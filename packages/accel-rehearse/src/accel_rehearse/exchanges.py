"""Count the exchanges of tensors between ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.utils._pytree import tree_iter

from accel_rehearse.refusal import frame_of_script, line_of

torchs: Any = distributed_c10d  # of which torch has given no types
NAMESPACES = ("c10d", "_c10d_functional")
#: operations of these namespaces that exchange nothing
_LOCAL = ("wait_tensor", "_wrap_tensor_autograd")
#: the field's names, which torch writes in several ways
_NAMES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")

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
        bare = operation.replace("_", "")
        name = next((one for one in _NAMES if one.replace("_", "") in bare), operation)
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
        group: Any = args[-1]
        if isinstance(group, str):
            group = torchs._resolve_process_group(group)
        elif not functional:
            group = next(torchs.ProcessGroup.unbox(one) for one in args[1:] if isinstance(one, torch.ScriptObject))
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
