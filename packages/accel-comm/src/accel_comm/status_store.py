"""Read and write short notes of the processes of a job, in the store of their process group."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, final

from accel_comm.store_connection import StoreConnection

#: what is added to the number: for a question to all, a process at its end, a sign of life of rank 0, a diagnosis
QUESTION, END, BEAT, DIAGNOSED = 1, 1 << 20, 1 << 38, 1 << 62
#: the ends of ranks that are listed: the first have caused the others
LISTED_ENDS = 16
#: the flag of a process that ends, in the flags of its stat; Source: PF_EXITING in Linux' include/linux/sched.h
_EXITING = 0x4


class Heartbeat(NamedTuple):
    """The facts in a number that all ranks read: one request reads the number and adds to it.

    Args:
        questions: Questions to all ranks so far.
        ends: Processes that have come to their end.
        beats: Signs of life of rank 0.
        diagnosed: Whether there is a diagnosis.
    """

    questions: int
    ends: int
    beats: int
    diagnosed: bool

    @classmethod
    def of(cls, number: int) -> Heartbeat:
        """Return the parts of the number: 2**20 questions, 2**18 ranks, 2**24 signs of life."""
        return cls(number % END, number % BEAT // END, number % DIAGNOSED // BEAT, number >= DIAGNOSED)


@final
class StatusStore:
    """The notes of a job under names, as JSON, where a reader never waits for a writer.

    No request waits for another process, so that threads may share it: each connection is an open file of rank 0.
    Each method that reads or writes raises RuntimeError if the process that serves the store is gone or is silent.

    Args:
        store: A store of torch, which gets another connection.
        rank: Rank of this process.
        run: Number of the run in the process: no run reads the notes of another.
    """

    def __init__(self, store: Any, rank: int, run: int = 0) -> None:
        self._connection = StoreConnection(store)
        self._ask = self._connection.ask
        self._prefix = f"accel.status/{run}/"
        self.rank = rank
        self.host = own_host()
        #: the process ids of the ranks of this machine that are known
        self._pids: dict[int, int] = {}
        self._may_come = True
        self._written = set[str]()
        self._append(f"host/{self.host}", [rank, os.getpid()])

    def is_gone(self, within_s: float = 0.0) -> bool:
        """Return whether the process that serves the store is gone, or found to be gone within some seconds."""
        return self._connection.is_closed(within_s)

    def is_stopped(self) -> bool:
        """Return whether rank 0, which serves the store, is on this machine and stopped: no request would end."""
        pid = self._pids.get(0)
        try:
            return pid is not None and _fields(pid)[0] in ("T", "t")
        except OSError:
            return False

    def post(self, name: str, note: Any) -> None:
        """Write a note, in place of an older note of that name."""
        self._ask("set", self._prefix + name, json.dumps(note))

    def read(self, name: str) -> Any:
        """Return the note of that name, or None."""
        name = self._prefix + name
        return json.loads(self._ask("get", name)) if self._ask("check", [name]) else None

    def read_all(self, names: Sequence[str]) -> list[Any]:
        """Return the notes of these names, None for a missing one, in one or two requests if all are there."""
        if not self._written.issuperset(names):
            if not self._ask("check", [self._prefix + name for name in names]):
                return [self.read(name) for name in names]
            self._written.update(names)
        return [json.loads(note) for note in self._ask("multi_get", [self._prefix + name for name in names])]

    def first(self, name: str, note: Any) -> Any:
        """Return the note that a process has first given under that name: this note, or an earlier one."""
        return json.loads(self._ask("compare_set", self._prefix + name, "", json.dumps(note)))

    def count(self, name: str, more: int = 0) -> int:
        """Add to the number of that name, and return it."""
        return int(self._ask("add", self._prefix + name, more))

    def heartbeat(self, more: int = 0) -> Heartbeat:
        """Add to the number that all ranks read, and return it."""
        return Heartbeat.of(self.count("heartbeat", more))

    def end(self, call: str | None) -> None:
        """Tell the others that the script of this rank has ended, and its last exchange in words."""
        if self.count("ends", 1) <= LISTED_ENDS:
            self._append("ended", [self.rank, call])
        self.heartbeat(END)

    def ended(self) -> dict[int, str | None]:
        """Return the first ranks whose scripts have ended, each with its last exchange in words."""
        return dict(self._listed("ended"))

    def gone_here(self) -> set[int]:
        """Return the ranks of this machine whose processes live no more. Other machines know of theirs."""
        self._look_around()
        return {rank for rank, pid in self._pids.items() if not _lives(pid)}

    def remember_all(self) -> None:
        """Note the ranks of this machine, and ask for no other any more. Every rank must have made its store."""
        self._look_around()
        self._may_come = False

    def _look_around(self) -> None:
        self._pids = dict(self._listed(f"host/{self.host}"))  # a new one: another thread may go through the old one

    def _append(self, name: str, entry: Any) -> None:
        self._ask("append", self._prefix + name, json.dumps(entry) + "\n")

    def _listed(self, name: str) -> list[Any]:
        name = self._prefix + name
        return list(map(json.loads, self._ask("get", name).splitlines())) if self._ask("check", [name]) else []

    def alive(self, rank: int) -> bool | None:
        """Return whether the process of a rank lives, or None if this machine cannot know."""
        return self.all_alive([rank])[0]

    def all_alive(self, ranks: Sequence[int]) -> list[bool | None]:
        """Return whether the process of each of these ranks lives, where this machine can know."""
        if self._may_come:
            self._look_around()
        return [_lives(self._pids[rank]) if rank in self._pids else None for rank in ranks]


def _lives(pid: int) -> bool:
    try:
        # a process that ends closes its connections before it is a zombie, and is that until its parent has heard of it
        fields = _fields(pid)
        return fields[0] not in ("Z", "X") and not int(fields[6]) & _EXITING
    except OSError:
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _fields(pid: int) -> list[str]:
    """Return what the kernel says of a process, from its state on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def own_host() -> str:
    """Return the identity of this machine, and of the namespace of process ids on it."""
    machine = namespace = ""
    with suppress(OSError):  # not every system has these, or lets everybody see them
        machine = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")  # process ids mean something only where they are the same ones
    return f"{socket.gethostname()} {machine} {namespace}".strip()


def open_status_store(rank: int, run: int) -> StatusStore:
    """Return a status store of the default process group, with a connection of its own."""
    from torch.distributed.distributed_c10d import _get_default_store

    return StatusStore(_get_default_store(), rank, run)
