"""What the processes of a job tell each other without waiting: short notes in the store that they met at."""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any, final

#: seconds between two signs of life
BEAT_S = 5.0


@final
class Board:
    """Notes under names, as JSON; reading never waits for the one who writes."""

    def __init__(self, store: Any, rank: int, run: int = 0) -> None:
        from torch._C._distributed_c10d import PrefixStore

        # One connection is behind one lock: a clone, so that no thread waits for another's. A store may serve several
        # runs of a process, one after the other: none is to read another's notes.
        self._store: Any = PrefixStore(f"accel.board/{run}", store.clone())
        self.rank = rank
        self.host = _host()
        self._who: dict[int, tuple[str, int]] = {}
        self.post(f"who/{rank}", [self.host, os.getpid()])

    def post(self, name: str, note: Any) -> None:
        """Writes a note, in place of one that is there."""
        self._store.set(name, json.dumps(note))

    def read(self, name: str) -> Any:
        """The note of that name; None where there is none."""
        return json.loads(self._store.get(name)) if self._store.check([name]) else None

    def count(self, name: str, more: int = 0) -> int:
        """The number of that name, with `more` added to it."""
        if more:
            return int(self._store.add(name, more))
        return int(self._store.get(name)) if self._store.check([name]) else 0  # adding nothing would grow a file

    def end(self, number: int, last: str | None) -> None:
        """Notes that this process has come to its end, and its last exchange."""
        self.post(f"ended/{self.rank}", [number, last])

    def ended(self, rank: int) -> tuple[int, str | None] | None:
        """The last exchange of a process that has come to its end, by number and in words; None of one that has not."""
        note = self.read(f"ended/{rank}")
        return None if note is None else (note[0], note[1])

    def alive(self, rank: int) -> bool | None:
        """Whether the process lives; None where this machine cannot know."""
        if rank not in self._who:
            note = self.read(f"who/{rank}")
            if note is None:
                return None
            self._who[rank] = note[0], note[1]
        host, pid = self._who[rank]
        if host != self.host:
            return None
        return _lives(pid)


def _lives(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    try:
        # one that has ended stays in the table until its parent has heard of it
        return status.read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _host() -> str:
    machine = namespace = ""
    with suppress(OSError):  # not every system has these, or lets everybody see them
        machine = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")  # process ids mean something only where they are the same ones
    return f"{socket.gethostname()} {machine} {namespace}".strip()


def open_board(rank: int, run: int) -> Board | None:
    """A board of the default process group; None where its store cannot be used by a second thread."""
    from torch.distributed.distributed_c10d import _get_default_store

    try:
        return Board(_get_default_store(), rank, run)
    except (RuntimeError, NotImplementedError):
        return None
