"""Read a stream, or one shard of it, epoch after epoch, with its position."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any, final

#: stands for the state of a source at its end, as its own state may be that of the start of its next epoch
ENDED = "all of it was served"


@final
class Source:
    """A stream, or one shard of it, which lives on from epoch to epoch.

    An epoch begins where the one before has ended. If that one was left in the middle, it begins where that one began,
    as far as the stream can be moved there.

    Args:
        make: Function that makes the stream.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._stream = make()
        self._front: Any = None
        self._was_put = False
        self.stateful = is_stateful(self._stream)
        #: whether its newest epoch has come to the end
        self.ended = True

    @property
    def front(self) -> Any:
        """The state of the stream at the start of its next epoch, or None if the stream has none."""
        return state_of(self._stream) if self.stateful and self.ended else self._front

    @property
    def position(self) -> Any:
        """The state of the stream in the current epoch."""
        said = state_of(self._stream)
        return {"ended": ENDED, "next": said} if self.ended else said

    def begin(self, taken: int, state: Any, keep: int, left: bool) -> tuple[Iterator[Any], list[Any]]:
        """Begin an epoch, from a position on if one is given.

        The caller reads `at_end` after the items.

        Args:
            taken: Items before the position.
            state: The state of the stream at the position, or None to read those items again.
            keep: Number of items from the start to return, of those that are read again.
            left: Whether the script left the last epoch before its end, which may be read nevertheless.

        Returns:
            The items from the position on, and the first `keep` items that were read again.
        """
        if state is None and not taken and (left or self._was_put or not self.ended):
            # it may begin each epoch where it was put, and one that was left in the middle
            state = self._front if left else self.front
        put = self._was_put = self.stateful and state is not None
        self._front = state if put else self.front
        self.ended = False
        if put:
            items, again = self._put_at(copy.deepcopy(state), taken), []
        else:
            items = iter(self._stream)
            again = list(islice(items, min(taken, keep)))
            deque(islice(items, taken - len(again)), maxlen=0)
            if taken:  # one item more, here and now: with it a stream draws its order, if from a global generator
                items = chain(list(islice(items, 1)), items)
        return items, again

    def _put_at(self, state: Any, taken: int) -> Iterator[Any]:
        if isinstance(state, dict) and state.get("ended") == ENDED:
            self._stream.load_state_dict(state["next"])
            return iter(())
        self._stream.load_state_dict(state)
        items: Iterator[Any] = iter(self._stream)
        if taken:
            return items
        first = list(islice(items, 1))
        if not first:  # it was put where one of its epochs had just ended
            self._stream, self._was_put = self._make(), False
            items = iter(self._stream)
        return chain(first, items)

    def at_end(self) -> Iterator[Any]:
        """Note that the epoch has ended, and yield nothing."""
        self.ended = True
        yield from ()


def is_stateful(source: object) -> bool:
    """Return whether a source, or a sampler, has a state that it can resume from."""
    told = all(callable(getattr(source, name, None)) for name in ("state_dict", "load_state_dict"))
    return told and not _forgets_its_buffer(getattr(source, "_ex_iterable", None))


def _forgets_its_buffer(inner: Any) -> bool:
    """Return whether a stream of Hugging Face datasets shuffles in a buffer, which its state leaves out."""
    if inner is None or type(inner).__name__ == "BufferShuffledExamplesIterable":
        return inner is not None
    parts = [getattr(inner, "ex_iterable", None), *(getattr(inner, "ex_iterables", None) or [])]
    return any(map(_forgets_its_buffer, parts))


def state_of(source: Any) -> Any:
    """Return a copy of the state of a source, which may change the object that it has returned."""
    return copy.deepcopy(source.state_dict())
