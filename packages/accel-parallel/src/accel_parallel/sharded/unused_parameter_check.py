"""Compare the parameters that ranks of a sharded model have used in a backward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

from accel_comm import AccelError, Transport
from torch import nn

from accel_parallel.invariants import unlike_lists

#: name of the comparison
COMPARED = "parameters that a backward has used"


class UnlikeParameters(AccelError, RuntimeError):
    """An error of ranks that have used different parameters of a sharded model, whose gradients torch has mixed up."""


@final
class UnusedParameterCheck:
    """A check that refuses a backward in which ranks have used different parameters.

    torch adds up what comes at the same position, and a device waits for what another rank does not send. Ranks
    exchange something only if a backward uses other parameters than the backward before. If only some ranks do, these
    wait for the others, which the watchdog tells. gloo may fail earlier, in the backward.

    Args:
        parameters: Sharded parameters by name.
        transport: Transport of the ranks.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], transport: Transport) -> None:
        self._parameters, self._transport = dict(parameters), transport
        #: what the newest backward added, by the gradients that were there before: the first of a window, and others
        self._agreed: dict[tuple[bool, ...], list[int]] = {}

    def marks(self) -> list[int]:
        """Return a number for each parameter, which a backward that uses the parameter makes larger."""
        # torch adds to the gradients of a block in one memory, with one version
        gradients: list[Any] = [parameter.grad for parameter in self._parameters.values()]
        return [-1 if gradient is None else gradient._local_tensor._version for gradient in gradients]

    def compare(self, before: Sequence[int]) -> None:
        """Compare what ranks have used since the marks before a backward.

        Raises:
            UnlikeParameters: Ranks have used different parameters. It is raised on all ranks.

        Collective:
            Every rank must call.
        """
        empty = tuple(mark < 0 for mark in before)
        used = [mark - old for mark, old in zip(self.marks(), before, strict=True)]
        if self._agreed.get(empty) == used:
            self._transport.skip(COMPARED)
            return
        found = unlike_lists(self._transport, COMPARED, list(map(str, used)))
        self._agreed[empty] = used
        if not found:
            return
        most = [max(map(int, counts)) for counts in zip(*found, strict=True)]
        lacks = [
            [name for name, mine, all_ in zip(self._parameters, counts, most, strict=True) if int(mine) < all_]
            for counts in found
        ]
        ranks = [
            f"rank {rank} lacks gradients of {', '.join(names[:3])}{' and others' if len(names) > 3 else ''}"
            for rank, names in enumerate(lacks)
            if names
        ]
        raise UnlikeParameters(
            "ranks of a sharded model have used different parameters, such as experts, and torch has mixed up their"
            f" gradients: {'; '.join(ranks[:4])}. Say FullyShardedDataParallelPlugin(find_unused_parameters=True)"
        )
