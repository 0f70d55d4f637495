"""Samples of several shards in turn, and how many were taken of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice, zip_longest
from typing import Any, final

_END = object()


@final
class RoundRobin:
    """Samples of several shards in turn, one of each, and how many were taken of each.

    A shard that has ended is passed over. `taken` counts what was taken of each shard before. With `ahead` a turn is
    read at once, which is faster; without, nothing is read before it is served.
    """

    def __init__(self, sources: dict[int, Any], taken: dict[int, int], *, ahead: bool) -> None:
        # the turn goes on where it was: shards that have given least come first
        self.shards = sorted(sources, key=lambda shard: (taken.get(shard, 0), shard))
        self.before = taken
        #: whether no shard has ended
        self.even = True
        self._passed = 0
        self._ends: dict[int, int] = {}
        sounded = [chain(sources[shard], self._sound()) for shard in self.shards]
        if len(sounded) == 1:
            self._items: Iterator[Any] = sounded[0]
        elif ahead:
            self._items = chain.from_iterable(zip_longest(*sounded, fillvalue=_END))
        else:
            self._items = _one_by_one(sounded)

    def _sound(self) -> Iterator[Any]:
        """Notes, in the moment in which a shard ends, that not all that follows are samples."""
        self.even = False
        yield from ()

    def take(self, count: int) -> list[Any]:
        """The next `count` samples, fewer at the end."""
        found = list(islice(self._items, count))
        if self.even:
            self._passed += len(found)
            return found
        found = self._samples(found)
        while len(found) < count:
            more = list(islice(self._items, count - len(found)))
            if not more:
                break
            found += self._samples(more)
        return found

    def _samples(self, items: list[Any]) -> list[Any]:
        samples = []
        for item in items:
            turn, place = divmod(self._passed, len(self.shards))
            self._passed += 1
            if item is _END:
                self._ends.setdefault(place, turn)
            else:
                samples.append(item)
        return samples

    @property
    def ended(self) -> set[int]:
        """Shards that have no more."""
        if len(self.shards) == 1:
            return set() if self.even else set(self.shards)
        return {self.shards[place] for place in self._ends}

    @property
    def taken(self) -> dict[int, int]:
        """Samples taken of each shard so far."""
        return {
            shard: self.before.get(shard, 0) + min(count, self._ends.get(place, count))
            for place, (shard, count) in enumerate(in_turn(self.shards, self._passed).items())
        }


def _one_by_one(sources: Sequence[Iterator[Any]]) -> Iterator[Any]:
    ended = 0
    while ended < len(sources):
        ended = 0
        for source in sources:
            item = next(source, _END)
            ended += item is _END
            yield item


def in_turn(shards: list[int], count: int) -> dict[int, int]:
    """How many of `count` samples each shard gives, when they give one each in that order."""
    turns, rest = divmod(count, len(shards))
    return {shard: turns + (place < rest) for place, shard in enumerate(shards)}
