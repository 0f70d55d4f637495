"""Whether all ranks of a process group do the same, found out by messages whose size no rank can change."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, final

from accel_state.flight_recorder import FlightRecorder
from accel_state.transports import agreement_block, header
from accel_state.transports._base import Join, longest_of
from accel_state.transports.agreement_block import Block
from accel_state.transports.binomial_tree import BinomialTree
from accel_state.transports.call_site_warning import CallSiteWarning
from accel_state.transports.peer_errors import PeerErrors

T = TypeVar("T")


@final
class Agreement:
    """The first message of what goes through the process group: a block that the ranks join on their way up a tree."""

    def __init__(
        self, rank: int, size: int, recorder: FlightRecorder, lost: PeerErrors, lines: CallSiteWarning
    ) -> None:
        self._tree = BinomialTree(rank, size, agreement_block.SIZE)
        self._ranks, self._recorder, self._lost, self._lines = range(size), recorder, lost, lines
        self._known = set[tuple[bytes, bytes]]()

    def of(
        self, what: str, about: bytes = b"", part: bytes = b"", join: Join = longest_of, *, longest: int = 0
    ) -> Block:
        """What all ranks say together, the same on each.

        Raises: CollectiveMismatch, with a line for each rank, on every rank where `what` is not the same on all.
        Collective: every rank of the group must call.
        """
        site = self._recorder.begin(what)
        mine = agreement_block.write(what, site, about, part, longest)
        said = self._noted(lambda: self._tree.all_reduce(mine, lambda blocks: agreement_block.joined(blocks, join)))
        block = agreement_block.read(said)
        lines = (block.first_line, block.last_line)
        if block.verdict & agreement_block.DIFFERENT or (lines[0] != lines[1] and lines not in self._known):
            mine = header.write(what, site, b"", header.BARE).ljust(header.BARE, b"\0")
            headers = self._noted(lambda: self._tree.all_gather(mine))
            self._known.add(lines)
            self._lines.warn(header.read(headers, self._ranks).apart)
        return block

    def all_gather(self, row: bytes) -> list[bytes]:
        """The rows of all ranks, in rank order.

        Collective: every rank of the group must call, with rows of one length.
        """
        self._recorder.begin("all_gather", f"{len(row)} bytes")
        return self._noted(lambda: self._tree.all_gather(row))

    def _noted(self, exchange: Callable[[], T]) -> T:
        try:
            return exchange()
        except RuntimeError as error:
            raise self._lost.translated(error) from None  # what gloo says is in the words
        finally:
            self._recorder.end()
