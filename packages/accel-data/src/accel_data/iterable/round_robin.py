"""Items of several sources in turn, and how many were taken of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import cycle, islice
from typing import Any, NamedTuple, final


class Ring(NamedTuple):
    """Sources that give one item each in this order, again and again; `taken` is what all had given before.

    A batch has the ring and a number of items: counting for each source what was taken would cost each batch more.
    """

    order: tuple[int, ...]
    taken: dict[int, int]

    def after(self, given: int) -> dict[int, int]:
        """Items taken of each source, once these have given so many."""
        turns, rest = divmod(given, len(self.order) or 1)
        counts = {source: turns + (place < rest) for place, source in enumerate(self.order)}
        return {source: before + counts.get(source, 0) for source, before in self.taken.items()}


@final
class RoundRobin:
    """Takes items of several sources in turn, one of each; a source that has ended is passed over.

    Nothing is read before it is taken. The turn goes on where it was: sources that have given least come first.
    """

    def __init__(self, sources: Mapping[int, Iterator[Any]], taken: dict[int, int]) -> None:
        self._sources = sources
        self._go_on(Ring(tuple(sorted(sources, key=lambda source: (taken[source], source))), taken))

    def _go_on(self, ring: Ring) -> None:
        #: the sources that have not ended, and what they have given since one did
        self.ring, self.given = ring, 0
        items = [self._sources[source] for source in ring.order]
        # `map` ends with the first source that does
        self._items = items[0] if len(items) == 1 else map(next, cycle(items))

    def take(self, count: int) -> list[Any]:
        """The next `count` items, fewer at the end."""
        items = list(islice(self._items, count))
        self.given += len(items)
        while len(items) < count and self.ring.order:
            ended, order = self.given % len(self.ring.order), self.ring.order
            self._go_on(Ring(order[ended + 1 :] + order[:ended], self.ring.after(self.given)))
            before = len(items)
            items += islice(self._items, count - before)
            self.given = len(items) - before
        return items
