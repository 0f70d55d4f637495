"""Small messages between the processes of one machine, through memory that they share."""

from __future__ import annotations

import mmap
import os
import secrets
import time
import zlib
from collections.abc import Callable
from typing import Any, final

from accel_state.board import Board
from accel_state.process_group import GroupOptions, limit_of_open_group

#: messages of a rank that may be under way, and bytes of each at most
SLOTS, LONGEST = 4, (1 << 16) - 16
_SLOT, _LINE, _TOKEN = LONGEST + 16, 64, 16
#: what a rank has read that will never come back
CLOSED = 1 << 62
#: looks before a wait lets go of the interpreter, and seconds before it lets go of the core
SPINS, YIELD_S = 200, 0.0002
#: seconds between two looks at most, and between two at whether the other is still there
PAUSE_S, CHECK_S = 0.002, 0.05


@final
class Mailbox:
    """Every rank's newest messages, in one piece of memory; each rank writes its own.

    Messages are numbered. A rank posts one for each number, and reads those of that number that it wants before it says
    `done`; who is `SLOTS` messages ahead of a reader waits for it.
    """

    def __init__(
        self, memory: mmap.mmap, board: Board, size: int, *, limit_s: float, lost: Callable[[str], Exception]
    ) -> None:
        #: the number of the newest message that this rank has posted
        self.number = 0
        self._memory, self._board, self._size = memory, board, size
        self._rank = rank = board.rank
        self._limit_s, self._lost = limit_s, lost
        self._words = memoryview(memory).cast("Q")  # a word is written and read whole
        self._others = [other for other in range(size) if other != rank]
        self._read_by_all = 0
        # who shares a core with the one it waits for is in its way
        self._spins = SPINS if size <= len(os.sched_getaffinity(0)) else 1

    def post(self, message: bytes) -> None:
        """Writes the next message, of at most LONGEST bytes."""
        self.number = number = self.number + 1
        if self._read_by_all + SLOTS < number:
            for other in self._others:
                self._await(self._done(other), number - SLOTS, other)
            self._read_by_all = number - SLOTS
        place = self._place(self._rank, number)
        self._memory[place + 16 : place + 16 + len(message)] = message
        word = place >> 3
        # the checksum tells a reader that sees the number before the content, as some processors let it
        self._words[word + 1] = len(message) << 32 | zlib.crc32(message)
        self._words[word] = number

    def read(self, rank: int) -> bytes:
        """The message of that number of a rank; waits until it is there."""
        number = self.number
        place = self._place(rank, number)
        word, words = place >> 3, self._words
        for _ in range(self._spins):
            if words[word] == number:
                break
        else:
            self._await(word, number, rank)
        while True:
            about = words[word + 1]
            message = self._memory[place + 16 : place + 16 + (about >> 32)]
            if zlib.crc32(message) == about & 0xFFFFFFFF:
                return message
            time.sleep(0)

    def done(self) -> None:
        """Says that this rank has read what it wants of the newest number."""
        self._words[self._done(self._rank)] = self.number

    def close(self) -> None:
        """Says that this rank will neither read nor write any more."""
        self._words[self._done(self._rank)] = CLOSED

    def _place(self, rank: int, number: int) -> int:
        return _LINE * (1 + self._size) + (rank * SLOTS + number % SLOTS) * _SLOT

    def _done(self, rank: int) -> int:
        return _LINE * (1 + rank) >> 3

    def _await(self, word: int, number: int, rank: int) -> None:
        """Returns when a rank has come to that number."""
        words, began = self._words, time.monotonic()
        check = began + CHECK_S
        while words[word] < number:
            now = time.monotonic()
            waited = now - began
            # a wait gets a sixteenth longer, and costs a core only while it is short
            time.sleep(0 if waited < YIELD_S else min(waited / 16, PAUSE_S))
            if now >= check:
                check = now + CHECK_S
                why = self._why_in_vain(rank, waited)
                if why is not None and words[word] < number:  # it may have been its last
                    raise self._lost(why)

    def _why_in_vain(self, rank: int, waited: float) -> str | None:
        if self._words[self._done(rank)] == CLOSED:
            return f"rank {rank} has ended"
        if self._board.alive(rank) is False or waited > self._limit_s:
            return f"no message from rank {rank} in {waited:.1f} s"
        return None


@final
class Opening:
    """The memory that ranks are about to share: rank 0 has made it, and says where on the board.

    It has no name in any file system, and goes with the last process that has it open.
    """

    def __init__(self, board: Board, size: int) -> None:
        self._board, self._size = board, size
        self._file: int | None = None
        self._possible = hasattr(os, "memfd_create")
        #: the memory, once this rank has it
        self.memory: mmap.mmap | None = None
        if self._possible and board.rank == 0:
            self._make()

    def attempt(self) -> bool:
        """Whether this rank has the memory; looks for it if not."""
        if self.memory is None and self._possible:
            note = self._board.read("mailbox")
            if note is not None:
                self._possible = False  # there is one, and it can be opened or not
                self.memory = self._opened(note)
        return self.memory is not None

    def mailbox(self, lost: Callable[[str], Exception]) -> Mailbox:
        """The mailbox in it, once all ranks have the memory; waits in it that are in vain raise what `lost` makes."""
        if self.memory is None:
            raise RuntimeError("a mailbox was asked for before there was memory for it")
        self.close()
        board, limit = self._board, (limit_of_open_group() or GroupOptions().limit).total_seconds()
        for rank in range(self._size):
            board.alive(rank)  # remembers which process it is, should the store go before the others do
        return Mailbox(self.memory, board, self._size, limit_s=limit, lost=lost)

    def close(self) -> None:
        """Lets nobody else find it."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _make(self) -> None:
        self._possible = False
        token, length = secrets.token_bytes(_TOKEN), _length(self._size)
        try:
            self._file = os.memfd_create("accel-mailbox")
            os.posix_fallocate(self._file, 0, length)  # a hole that cannot be filled later would kill the process
            self.memory = mmap.mmap(self._file, length)
        except OSError:
            self.close()
            return
        self.memory[:_TOKEN] = token
        self._board.post("mailbox", [self._board.host, f"/proc/{os.getpid()}/fd/{self._file}", token.hex()])

    def _opened(self, note: Any) -> mmap.mmap | None:
        host, path, token = note
        length = _length(self._size)
        if host != self._board.host:
            return None
        try:
            with open(path, "r+b", buffering=0) as file:
                memory = mmap.mmap(file.fileno(), length)
        except (OSError, ValueError):
            return None
        return memory if memory[:_TOKEN].hex() == token else None


def _length(size: int) -> int:
    return _LINE * (1 + size) + size * SLOTS * _SLOT
