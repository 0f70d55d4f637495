"""Items of several sources in turn, and how many were taken of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import cycle, islice
from typing import Any, final


@final
class RoundRobin:
    """Takes items of several sources in turn, one of each; a source that has ended is passed over.

    Nothing is read before it is taken. The turn goes on where it was: sources that have given least come first.
    """

    def __init__(self, sources: Mapping[int, Iterator[Any]], taken: dict[int, int]) -> None:
        self._sources = sources
        self._go_on(sorted(sources, key=lambda source: (taken[source], source)), taken)

    def _go_on(self, order: list[int], taken: dict[int, int]) -> None:
        #: the sources that have not ended, what all had given before, and items that these have given since
        self._order, self._before, self._given = order, taken, 0
        items = [self._sources[source] for source in order]
        # `map` ends with the first source that does
        self._items = items[0] if len(items) == 1 else map(next, cycle(items))

    @property
    def taken(self) -> dict[int, int]:
        """Items taken of each source."""
        turns, more = divmod(self._given, len(self._order) or 1)
        since = {source: turns + (place < more) for place, source in enumerate(self._order)}
        return {source: before + since.get(source, 0) for source, before in self._before.items()}

    def take(self, count: int) -> list[Any]:
        """The next `count` items, fewer at the end."""
        items = list(islice(self._items, count))
        self._given += len(items)
        while len(items) < count and self._order:
            ended = self._given % len(self._order)
            self._go_on(self._order[ended + 1 :] + self._order[:ended], self.taken)
            more = list(islice(self._items, count - len(items)))
            self._given = len(more)
            items += more
        return items
