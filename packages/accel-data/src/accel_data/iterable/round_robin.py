"""Take items of several sources in turn, and count what was taken of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import cycle, islice
from typing import Any, NamedTuple, final


class ItemCounts(NamedTuple):
    """A ring of sources that give one item each, again and again.

    A batch has the ring and a number of items. To count what was taken of each source would cost each batch more.

    Args:
        order: The sources in their order.
        taken: Items that each source had given before.
    """

    order: tuple[int, ...]
    taken: dict[int, int]

    def after(self, given: int) -> dict[int, int]:
        """Return the items taken of each source, after the ring has given some.

        Args:
            given: Items that the sources of the ring have given together.
        """
        turns, rest = divmod(given, len(self.order) or 1)
        counts = {source: turns + (place < rest) for place, source in enumerate(self.order)}
        return {source: before + counts.get(source, 0) for source, before in self.taken.items()}


@final
class RoundRobin:
    """A reader of several sources in turn, one item of each, which skips a source that has ended.

    Nothing is read before it is taken. The turn resumes where it was: sources that have given least come first.

    Args:
        sources: Iterators, by number.
        taken: Items that each source has given before.
    """

    def __init__(self, sources: Mapping[int, Iterator[Any]], taken: dict[int, int]) -> None:
        self._sources = sources
        self._go_on(ItemCounts(tuple(sorted(sources, key=lambda source: (taken[source], source))), taken))

    def _go_on(self, ring: ItemCounts) -> None:
        #: the sources that have not ended, and what they have given since one did
        self.ring, self.given = ring, 0
        items = [self._sources[source] for source in ring.order]
        # `map` ends with the first source that does
        self._items = items[0] if len(items) == 1 else map(next, cycle(items))

    def take(self, count: int) -> list[Any]:
        """Return the next `count` items, or fewer at the end."""
        items = list(islice(self._items, count))
        self.given += len(items)
        while len(items) < count and self.ring.order:
            ended, order = self.given % len(self.ring.order), self.ring.order
            self._go_on(ItemCounts(order[ended + 1 :] + order[:ended], self.ring.after(self.given)))
            before = len(items)
            items += islice(self._items, count - before)
            self.given = len(items) - before
        return items
