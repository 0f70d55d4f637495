"""A batch of a stream between its reader and the loader, with the position of its reader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, final

from accel_state import BatchPadding
from torch.utils.data._utils.pin_memory import pin_memory

from accel_data.iterable.round_robin import ItemCounts

#: what a batch says that takes nothing of any source
NOTHING = ItemCounts((), {})


@final
@dataclass(slots=True)
class ReadBatch:
    """A batch of a stream, with the position of its reader after it.

    Args:
        value: The samples of the batch, and the batch itself once they are collated.
        reader: Number of the reader, or None for samples that are served again.
        ring: The sources that the reader takes turns of.
        given: Items that these sources have given, this batch included.
        samples: Samples of the batch, if this rank reads it alone.
        tail: The real samples of each rank, or None if all are real.
        states: The states of the sources that have moved, by number.
        end: Whether this is the record at the end of a reader, which has no samples.
        first: Digest of the first sample of the stream, in its first batch if ranks compare it.
    """

    value: Any
    reader: int | None
    ring: ItemCounts = NOTHING
    given: int = 0
    samples: int = 0
    tail: BatchPadding | None = None
    states: dict[int, Any] | None = None
    end: bool = False
    first: str | None = None

    @property
    def taken(self) -> dict[int, int]:
        """The number of items taken of each source of the reader."""
        return self.ring.after(self.given)

    def pin_memory(self) -> ReadBatch:
        """Pin the memory of the batch, and return the batch itself.

        torch calls this for types that it does not know.
        """
        self.value = pin_memory(self.value)  # type: ignore[no-untyped-call] # of torch
        return self


@final
class ReadCollate:
    """A `collate_fn` that passes the samples of each batch of a reader to the loader's own one.

    Args:
        collate: The `collate_fn` of the loader.
    """

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate = collate

    def __call__(self, read: Any) -> Any:
        batches = read if isinstance(read, list) else [read]
        if not batches or not isinstance(batches[0], ReadBatch):
            return self.collate(read)  # samples, of a script that has put a collate_fn of its own around this one
        for batch in batches:
            if not batch.end:
                batch.value = self.collate(batch.value)
        return read

    def around(self, collate: Callable[[Any], Any]) -> Self:
        """Return the same around another `collate_fn`."""
        return type(self)(collate)
