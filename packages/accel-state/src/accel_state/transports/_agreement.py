"""Whether all ranks of a process group do the same, found out by messages whose size no rank can change."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, final

from accel_state.journal import Journal
from accel_state.transports import _block, _front
from accel_state.transports._base import Join, longest_of
from accel_state.transports._block import Block
from accel_state.transports._lost_peer import LostPeer
from accel_state.transports._other_lines import OtherLines
from accel_state.transports._tree import Tree

T = TypeVar("T")


@final
class Agreement:
    """The first message of what goes through the process group: a block that the ranks join on their way up a tree."""

    def __init__(self, rank: int, size: int, journal: Journal, lost: LostPeer, lines: OtherLines) -> None:
        self._tree = Tree(rank, size, _block.SIZE)
        self._ranks, self._journal, self._lost, self._lines = range(size), journal, lost, lines
        self._known = set[tuple[bytes, bytes]]()

    def of(
        self, what: str, about: bytes = b"", part: bytes = b"", join: Join = longest_of, *, longest: int = 0
    ) -> Block:
        """What all ranks say together, the same on each.

        Raises: CollectiveMismatch, with a line for each rank, on every rank where `what` is not the same on all.
        Collective: every rank of the group must call.
        """
        site = self._journal.begin(what)
        mine = _block.write(what, site, about, part, longest)
        said = self._noted(lambda: self._tree.all_reduce(mine, lambda blocks: _block.joined(blocks, join)))
        block = _block.read(said)
        lines = (block.first_line, block.last_line)
        if block.verdict & _block.DIFFERENT or (lines[0] != lines[1] and lines not in self._known):
            front = _front.write(what, site, b"", _front.BARE).ljust(_front.BARE, b"\0")
            fronts = self._noted(lambda: self._tree.all_gather(front))
            self._known.add(lines)
            self._lines.warn(_front.read(fronts, self._ranks).apart)
        return block

    def all_gather(self, row: bytes) -> list[bytes]:
        """The rows of all ranks, in rank order.

        Collective: every rank of the group must call, with rows of one length.
        """
        self._journal.begin("all_gather", f"{len(row)} bytes")
        return self._noted(lambda: self._tree.all_gather(row))

    def _noted(self, exchange: Callable[[], T]) -> T:
        try:
            return exchange()
        except RuntimeError as error:
            raise self._lost.translated(error) from None  # what gloo says is in the words
        finally:
            self._journal.end()
