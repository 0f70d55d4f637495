"""A batch of a stream on its way from the process that reads it, and where its reader stands after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from accel_ops import recursively_apply
from accel_state import Tail


@final
@dataclass(slots=True)
class ReadBatch:
    """A batch of a stream: its samples, once collated the batch itself, and where its reader stands after it.

    `given` counts the items of the order that the reader has given in this pass, and `taken` those of each of its
    shards since the front, if these do not follow from `given`. `states` are what sources say of their places. The
    record that a reader adds at its `end` has no samples. `first` is a digest of the first sample of a stream.
    """

    value: Any
    reader: int
    given: int = 0
    samples: int = 0
    tail: Tail | None = None
    taken: dict[int, int] | None = None
    states: dict[int, Any] | None = None
    end: bool = False
    first: str | None = None

    def pin_memory(self) -> ReadBatch:
        """The same batch in pinned memory; torch calls this for types that it does not know."""
        self.value = recursively_apply(lambda tensor: tensor.pin_memory(), self.value)
        return self


@final
class ReadCollate:
    """A `collate_fn` for what readers give: it hands the samples to the loader's own one."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate = collate

    def __call__(self, batch: ReadBatch) -> ReadBatch:
        if not batch.end:
            batch.value = self.collate(batch.value)
        return batch
