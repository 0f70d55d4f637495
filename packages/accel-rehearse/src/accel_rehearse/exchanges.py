"""Count the exchanges of tensors between ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from accel_rehearse.nested_tensors import bytes_of, tensors_in
from accel_rehearse.refusal import line_of

torchs: Any = distributed_c10d  # of which torch has given no types
NAMESPACES = ("c10d", "_c10d_functional")
#: the field's names, which torch's have in common, with more underscores or fewer
_NAMES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")


class ExchangeLog:
    """The exchanges of a rank, in their order."""

    def __init__(self) -> None:
        #: the name of each, the ranks that take part, the bytes of the whole tensor
        self.log: list[tuple[str, tuple[int, ...], int]] = []
        #: calls that have to be the same on all ranks, with the lines of the script
        self.calls: list[tuple[str, str]] = []

    def note(self, func: Any, args: Sequence[Any]) -> None:
        """Take note of an operation of torch's, if it is an exchange.

        Args:
            func: The operation.
            args: Its arguments.
        """
        operation = func.overloadpacket.__name__.strip("_")
        name = next((name for name in _NAMES if name.replace("_", "") in operation.replace("_", "")), operation)
        # of the inputs and the outputs, the larger are whole
        size = max(map(bytes_of, map(tensors_in, args)))
        group = args[-1]
        if func.namespace == "c10d":
            group = next(torchs.ProcessGroup.unbox(one) for one in args[1:] if isinstance(one, torch.ScriptObject))
        elif not isinstance(group, str):
            return  # it waits for an exchange, and makes none
        else:
            group = torchs._resolve_process_group(group)
            size *= group.size() if name == "all_gather" else 1
        self.log.append((name, tuple(dist.get_process_group_ranks(group)), size))
        self.call(f"{name} of {size} bytes")

    def call(self, what: str) -> None:
        """Take note of a call that all ranks have to make."""
        self.calls.append((what, line_of()))

    def by_name(self, begin: int, end: int, per_machine: int) -> list[dict[str, Any]]:
        """Return calls and bytes of each kind of exchange, and the numbers of ranks and machines that take part.

        Args:
            begin: Number of exchanges before the first to count.
            end: Number of exchanges at the end.
            per_machine: Ranks of a machine.
        """
        sizes: dict[tuple[str, tuple[int, ...]], list[int]] = defaultdict(list)
        for name, ranks, size in self.log[begin:end]:
            sizes[name, ranks].append(size)
        return [
            {
                "name": name,
                "calls": len(each),
                "bytes": sum(each),
                "group_size": len(ranks),
                "machines": len({rank // per_machine for rank in ranks}),
            }
            for (name, ranks), each in sorted(sizes.items())
        ]
