"""Ranks that wait for another's work, for as long as it lives and not for a collective."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import final

from accel_state.board import BEAT_S, Board
from accel_state.errors import CollectiveMismatch, PeerFailed

#: seconds between two looks, at first and at most
FIRST_S, MOST_S = 0.001, 0.25
#: seconds without a sign of life of a process on another machine
SILENT_S = 12 * BEAT_S


@final
class Turns:
    """The turns of a job: the ranks that call these methods must do so in like order."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._turn = 0

    def whereabouts(self, ranks: Iterable[int]) -> str:
        """A line for each of these ranks, other than this one, that is gone, or has come to its end."""
        rows = []
        for rank in ranks:
            try:
                last = self._board.ended(rank)
                if rank != self._board.rank and last is not None:
                    did = f"its last was {last[1]}" if last[1] is not None else "it has called none"
                    rows.append(f"\n  rank {rank} has come to its end; {did}")
                elif self._board.alive(rank) is False:
                    rows.append(f"\n  rank {rank} is gone")
            except RuntimeError:
                return "\n  the process that serves the store is gone"
        return "".join(rows)

    def is_judged(self) -> bool:
        """Whether the job is being ended, with a report that says why."""
        try:
            return self._board.read("verdict") is not None
        except RuntimeError:
            return False

    def begin(self) -> int:
        """The number of the turn that this rank begins."""
        self._turn += 1
        return self._turn

    def end(self, turn: int, site: str, failure: str | None) -> None:
        """Lets the others go on."""
        self._board.post(f"turn/{turn}/{self._board.rank}", [failure, site])

    def wait(self, first: int, site: str) -> str | None:
        """Why the turn of rank `first` failed, or None, once it has ended.

        Raises: PeerFailed when that process is gone; CollectiveMismatch where that rank took its turn elsewhere.
        """
        self._turn += 1
        name, pause = f"turn/{self._turn}/{first}", FIRST_S
        beat, heard = None, time.monotonic()
        while True:
            try:
                lives = self._board.alive(first)
                note = self._board.read(name)
                newest = self._board.read(f"beat/{first}")
            except RuntimeError as error:
                raise PeerFailed(f"rank {first}, or the process that serves the store, is gone ({error})") from error
            if note is not None:
                failure: str | None = note[0]
                if note[1].rpartition("/")[2] != site.rpartition("/")[2]:
                    raise CollectiveMismatch(
                        "ranks take their turns at different lines:"
                        f"\n  rank {first}: main_process_first at {note[1]}"
                        f"\n  rank {self._board.rank}: main_process_first at {site}\nenter it on every rank"
                    )
                return failure
            if newest != beat:
                beat, heard = newest, time.monotonic()
            silent = lives is None and beat is not None and time.monotonic() - heard > SILENT_S
            if lives is False or silent:
                raise PeerFailed(f"rank {first}, which had to go first, is gone")
            time.sleep(pause)
            pause = min(2 * pause, MOST_S)
