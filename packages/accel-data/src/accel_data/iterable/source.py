"""A stream, or one shard of it, as it is read pass after pass, and what it says of its place."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any, final

#: what is said of a source that has given all it has: what it says itself may be true of the front of its next pass
ENDED = "all of it was served"


@final
class Source:
    """A stream, or one shard of it, which lives on from pass to pass.

    A pass begins where the one before has ended, or began if it was left, as far as the stream can be put there.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._stream = make()
        self._front: Any = None
        self._was_put = False
        self.stateful = is_stateful(self._stream)
        #: whether its newest pass has come to the end
        self.ended = True

    @property
    def front(self) -> Any:
        """What it says of the front of its next pass; None if it cannot."""
        return state_of(self._stream) if self.stateful and self.ended else self._front

    @property
    def place(self) -> Any:
        """What it says of its place in the pass that runs."""
        said = state_of(self._stream)
        return {"ended": ENDED, "next": said} if self.ended else said

    def begin(self, taken: int, state: Any, keep: int, left: bool) -> tuple[Iterator[Any], list[Any]]:
        """Begins a pass, at a place if it is told one: its items, and the first `keep` of those that are read again.

        The caller takes the items of `at_end` after these.
        `left` says that the script did not wait for the end of the pass before, which may be read nevertheless.
        """
        if state is None and not taken and (left or self._was_put or not self.ended):
            # it may begin each pass where it was put, and one that was left in the middle
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
        if not first:  # it was put where one of its passes had just ended
            self._stream, self._was_put = self._make(), False
            items = iter(self._stream)
        return chain(first, items)

    def at_end(self) -> Iterator[Any]:
        """Gives nothing, and notes that the pass has come to its end."""
        self.ended = True
        yield from ()


def is_stateful(source: object) -> bool:
    """Whether a source, or a sampler, can say where it stands and be put there again."""
    told = all(callable(getattr(source, name, None)) for name in ("state_dict", "load_state_dict"))
    return told and not _forgets_its_buffer(getattr(source, "_ex_iterable", None))


def _forgets_its_buffer(inner: Any) -> bool:
    """Whether this part of a stream of Hugging Face datasets shuffles in a buffer, which the state leaves out."""
    if inner is None or type(inner).__name__ == "BufferShuffledExamplesIterable":
        return inner is not None
    parts = [getattr(inner, "ex_iterable", None), *(getattr(inner, "ex_iterables", None) or [])]
    return any(map(_forgets_its_buffer, parts))


def state_of(source: Any) -> Any:
    """A copy of what a source says of its place: it may go on with the very object that it told."""
    return copy.deepcopy(source.state_dict())
