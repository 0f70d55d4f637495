"""A batch of a stream on its way from the process that reads it, and where its reader stands after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from accel_state import BatchPadding
from torch.utils.data._utils.pin_memory import pin_memory

from accel_data.iterable.round_robin import Ring

#: what a batch says that takes nothing of any source
NOTHING = Ring((), {})


@final
@dataclass(slots=True)
class ReadBatch:
    """A batch of a stream: its samples, once collated the batch itself, and where its reader stands after it.

    The sources of the `ring` have `given` so many items when it was read, and `states` are what they say of their
    places. `samples` counts those of a batch that its rank reads alone. The record that a reader adds at its `end` has
    no samples. `first` is a digest of the first sample of a stream. What is served again has no `reader`.
    """

    value: Any
    reader: int | None
    ring: Ring = NOTHING
    given: int = 0
    samples: int = 0
    tail: BatchPadding | None = None
    states: dict[int, Any] | None = None
    end: bool = False
    first: str | None = None

    @property
    def taken(self) -> dict[int, int]:
        """Items taken of each source of the reader."""
        return self.ring.after(self.given)

    def pin_memory(self) -> ReadBatch:
        """The same batch in pinned memory; torch calls this for types that it does not know."""
        self.value = pin_memory(self.value)  # type: ignore[no-untyped-call] # of torch
        return self


@final
class ReadCollate:
    """A `collate_fn` for what readers give: it hands the samples of each batch to the loader's own one."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate = collate

    def __call__(self, read: ReadBatch | list[ReadBatch]) -> ReadBatch | list[ReadBatch]:
        for batch in read if isinstance(read, list) else (read,):
            if not batch.end:
                batch.value = self.collate(batch.value)
        return read
