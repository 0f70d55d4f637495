"""Send small messages between the processes of one machine, through memory that they share."""

from __future__ import annotations

import mmap
import os
import secrets
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, final

from accel_comm.status_store import StatusStore

#: messages of a rank that may be under way, and bytes of each at most: 128 KiB of data, and what is said of it
SLOTS, LONGEST = 4, (1 << 17) + (1 << 13) - 16
_SLOT, _LINE, _TOKEN = LONGEST + 16, 64, 16
#: votes of a rank that may be under way
VOTES = 4
#: bytes of a message that has sections behind it, at most
SHORT = 256
#: what a rank has read that will never come back
CLOSED = 1 << 62
#: looks before a wait lets go of the interpreter, and seconds before it lets go of the core
SPINS, YIELD_S = 200, 0.0002
#: seconds between two looks at most, and between two at whether the other is still there
PAUSE_S, CHECK_S = 0.002, 0.05


@final
class SharedMemoryChannel:
    """The newest messages of all ranks, in one piece of memory of which each rank writes its own part.

    Messages are numbered. A rank posts a message for each number, and reads the others' messages of that number before
    it says `done`; a rank that is `SLOTS` messages ahead of a reader waits for the reader. A short message may have a
    section for each other rank, which only that rank reads.

    Args:
        memory: Memory that all ranks share.
        store: Notes of the ranks, which tell who is alive.
        size: Number of ranks.
        limit_s: Seconds after which a wait fails.
        lost: Function that makes the error of a wait in vain from its cause.
    """

    def __init__(
        self, memory: mmap.mmap, store: StatusStore, size: int, *, limit_s: float, lost: Callable[[str], Exception]
    ) -> None:
        #: the number of the newest message that this rank has posted, and how many votes it has cast
        self.number = self.votes = 0
        #: the series of the newest vote
        self.series: Any = None
        self._memory, self._store, self._size = memory, store, size
        self._rank = rank = store.rank
        self._limit_s, self._lost = limit_s, lost
        self._words = memoryview(memory).cast("Q")  # a word is written and read whole
        self._others = [other for other in range(size) if other != rank]
        self._read_by_all = 0
        self._step = (LONGEST - SHORT) // max(size - 1, 1) & ~7
        #: bytes of a section, at most
        self.section_room = self._step - 8
        # who shares a core with the one it waits for is in its way
        self._spins = SPINS if size <= len(os.sched_getaffinity(0)) else 1

    def post(self, message: bytes, sections: Sequence[bytes] = ()) -> None:
        """Write the next message, of at most LONGEST bytes, or SHORT ones with a section for each rank."""
        number = self.number + 1  # ours only when it is written: what interrupts the wait takes none
        if self._read_by_all + SLOTS < number:
            for other in self._others:
                self._await(self._done(other), number - SLOTS, other)
            self._read_by_all = number - SLOTS
        place = self._place(self._rank, number)
        for rank, section in enumerate(sections):
            if rank != self._rank:
                self._write(self._section(place, self._rank, rank), section, number)
        self._write(place + 8, message, number)
        self._words[place >> 3], self.number = number, number

    def read(self, rank: int) -> bytes:
        """Wait for the message of a rank with the newest number, and return it."""
        number = self.number
        place = self._place(rank, number)
        word, words = place >> 3, self._words
        for _ in range(self._spins):
            if words[word] == number:
                break
        else:
            self._await(word, number, rank)
        return self._content(place + 8, number, rank)

    def read_section(self, rank: int) -> bytes:
        """Return the section for this rank of a message that has sections, and that was read."""
        return self._content(self._section(self._place(rank, self.number), rank, self._rank), self.number, rank)

    def exchange(self, message: bytes) -> list[bytes]:
        """Post a message, and return the messages of all ranks, in rank order."""
        self.post(message)
        messages = [message if rank == self._rank else self.read(rank) for rank in range(self._size)]
        self.done()
        return messages

    def hear(self, message: bytes, source: int) -> bytes:
        """Post a message, and return that of rank `source`."""
        self.post(message)
        heard = message if source == self._rank else self.read(source)
        self.done()
        return heard

    def done(self) -> None:
        """Tell the others that this rank has read the messages of the newest number."""
        self._words[self._done(self._rank)] = self.number

    def words_of_votes(self) -> tuple[memoryview, list[int], int]:
        """Return the memory, the index of the first word of votes of each rank in it, and that of this rank."""
        places = [self._done(rank) + VOTES for rank in range(self._size)]
        return self._words, places, places[self._rank]

    def sees_vote(self, word: int, least: int) -> bool:
        """Return whether a word has come to `least`, after as many looks as are worth while."""
        words = self._words
        return any(words[word] >= least for _ in range(self._spins))

    def await_vote(self, word: int, least: int, rank: int) -> None:
        """Wait until a word has come to `least`, or its rank posts a message and waits for this rank.

        Args:
            word: Index of the word.
            least: Number to wait for.
            rank: Rank that writes the word.
        """
        self._await(word, least, rank, instead=self._place(rank, self.number + 1) >> 3)

    def close(self) -> None:
        """Tell the others that this rank will neither read nor write any more."""
        self._words[self._done(self._rank)] = CLOSED

    def _write(self, place: int, content: bytes, number: int) -> None:
        self._memory[place + 8 : place + 8 + len(content)] = content
        # the checksum tells a reader that sees the number before the content, as some processors let it
        self._words[place >> 3] = len(content) << 32 | _checksum(content, number)

    def _content(self, place: int, number: int, rank: int) -> bytes:
        until = time.monotonic() + self._limit_s
        while True:
            about = self._words[place >> 3]
            content = self._memory[place + 8 : place + 8 + (about >> 32)]
            if _checksum(content, number) == about & 0xFFFFFFFF:
                return content
            if time.monotonic() > until:
                raise self._lost(f"message {number} of rank {rank} is damaged")
            time.sleep(0)

    def _place(self, rank: int, number: int) -> int:
        return _LINE * (1 + self._size) + (rank * SLOTS + number % SLOTS) * _SLOT

    def _section(self, place: int, source: int, rank: int) -> int:
        return place + 16 + SHORT + (rank - source - 1) % self._size * self._step

    def _done(self, rank: int) -> int:
        return _LINE * (1 + rank) >> 3

    def _await(self, word: int, number: int, rank: int, instead: int | None = None) -> None:
        """Wait until a word has come to a number, or the word `instead` is past the newest message."""
        words, began = self._words, time.monotonic()
        check = began + CHECK_S
        while words[word] < number:
            now = time.monotonic()
            waited = now - began
            # a wait gets a sixteenth longer, and costs a core only while it is short
            time.sleep(0 if waited < YIELD_S else min(waited / 16, PAUSE_S))
            if now >= check:
                check = now + CHECK_S
                if instead is not None and words[instead] > self.number:
                    return
                why = self._why_in_vain(rank, waited)
                if why is not None and words[word] < number:  # it may have been its last
                    raise self._lost(why)

    def _why_in_vain(self, rank: int, waited: float) -> str | None:
        if self._words[self._done(rank)] == CLOSED:
            return f"rank {rank} has ended"
        if self._store.alive(rank) is False or waited > self._limit_s:
            return f"no message from rank {rank} in {waited:.1f} s"
        return None


def _checksum(message: bytes, number: int) -> int:
    # spread over all bits: a small number would only be a change of the first byte, and two such changes cancel out
    return zlib.crc32(message, number * 0x9E3779B1 & 0xFFFFFFFF)


def map_shared_memory(
    rank: int, size: int, host: str, all_gather: Callable[[Any], Sequence[Any]], *, wanted: bool = True
) -> mmap.mmap | None:
    """Return memory that all ranks share, or None on all ranks if one does not want it or cannot open it.

    It has no name in any file system, and goes with the last process that uses it.

    Args:
        rank: Rank of this process; rank 0 makes the memory.
        size: Number of ranks.
        host: Identity of this machine.
        all_gather: Function that returns the values of all ranks.
        wanted: Whether this rank wants the memory.

    Collective:
        Every rank must call.
    """
    file, memory, place = None, None, list[str]()
    try:
        if rank == 0 and wanted:
            with suppress(OSError, AttributeError):  # a system without such memory
                file = os.memfd_create("accel-shared-memory")
                os.posix_fallocate(file, 0, _length(size))  # a hole that cannot be filled would kill the process
                memory = mmap.mmap(file, _length(size))
                memory[:_TOKEN] = token = secrets.token_bytes(_TOKEN)
                place = [host, f"/proc/{os.getpid()}/fd/{file}", token.hex()]
        place = all_gather(place)[0]
        if rank != 0 and wanted:
            memory = _opened(place, host, _length(size))
        return memory if all(all_gather(memory is not None)) else None
    finally:
        if file is not None:
            os.close(file)


def _opened(note: Any, host: str, length: int) -> mmap.mmap | None:
    if not note or note[0] != host:
        return None
    try:
        with open(note[1], "r+b", buffering=0) as file:
            memory = mmap.mmap(file.fileno(), length)
    except (OSError, ValueError):
        return None
    return memory if memory[:_TOKEN].hex() == note[2] else None


def _length(size: int) -> int:
    return _LINE * (1 + size) + size * SLOTS * _SLOT
