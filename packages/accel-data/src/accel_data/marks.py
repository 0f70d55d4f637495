"""What a batch of a stream tells about itself on its way from the process that reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from accel_ops import recursively_apply
from accel_state import Tail


class Mark(NamedTuple):
    """What is real in a batch, which reader it comes from, and where that reader's source stands after it.

    `samples` is the number of its samples and `taken` how many samples were read of each shard, where the source is
    sharded; `state` is what the source says of its place.
    """

    tail: Tail | None = None
    stream: int = 0
    samples: int = 0
    taken: dict[int, int] | None = None
    state: Any = None


@dataclass(slots=True)
class Marked:
    """A sample or batch with its mark."""

    value: Any
    mark: Mark

    def pin_memory(self) -> Marked:
        """The same in pinned memory; torch calls this for types that it does not know."""
        return Marked(recursively_apply(lambda tensor: tensor.pin_memory(), self.value), self.mark)


class MarkedCollate:
    """A `collate_fn` that takes the mark of a batch off its first sample, and puts it on the batch."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate = collate

    def __call__(self, samples: Any) -> Any:
        if type(samples) is Marked:  # a loader that does not batch passes one sample at a time
            return Marked(self.collate(samples.value), samples.mark)
        if type(samples) is list and samples and type(samples[0]) is Marked:
            return Marked(self.collate([samples[0].value, *samples[1:]]), samples[0].mark)
        return self.collate(samples)
