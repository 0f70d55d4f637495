"""Describe how a job ended: how each process ended, why it says it failed, and which of them is the root cause."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGABRT, Signals
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accel_launch.nodes.peers import NodeFailure

#: whose failure comes first: one that was killed, one that says why, one that has lost a peer
KILLED, SAID, LOST_PEER = 0, 1, 2
#: lines of a traceback that are shown: of a long one the first and the last
FIRST_LINES, LAST_LINES = 5, 25
_INSTALLED = re.compile("/lib/python|site-packages")
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class FailureCause:
    """An exception or a fault.

    Args:
        what: Its text.
        site: The user's own line.
        traceback: The traceback.
        lost_peer: True if it blames another rank.
        beside: Its thread or its process, if it did not end the rank itself.
        exchange: The exchange that the process was in, if any.
    """

    what: str
    site: str
    traceback: str
    lost_peer: bool = False
    beside: str = ""
    exchange: str = ""

    @property
    def shown(self) -> str:
        """The traceback, without the middle of a long one."""
        from accel_state.failure_file import shorten

        return shorten(self.traceback, FIRST_LINES, LAST_LINES)


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """The end of a process.

    Args:
        rank: Its rank.
        pid: Its process id.
        status: Its exit code, or minus the signal that killed it.
        command: Its program and arguments.
        peak_bytes: Memory that it took; 0 if unknown.
        cause: Why it failed, if it said so.
    """

    rank: int
    pid: int
    status: int
    command: tuple[str, ...]
    peak_bytes: int = 0
    cause: FailureCause | None = None

    @property
    def order(self) -> int:
        """The order of blame, since a process that dies takes others along, which often end sooner."""
        if self.status == -SIGABRT:
            return LOST_PEER  # NCCL ends a process that has lost another one in this way
        if self.status < 0:
            return KILLED
        return LOST_PEER if self.cause is not None and self.cause.lost_peer else SAID

    @property
    def code(self) -> int:
        """The exit code as a shell gives it: 128 + n if signal n killed the process."""
        return self.status if self.status >= 0 else 128 - self.status


@dataclass(frozen=True, slots=True)
class JobResult:
    """The end of a job on this machine.

    Args:
        size: Number of processes of the job on all machines.
        first: The process whose failure is the root cause.
        stopped: Ranks that were ended because of it.
        failed: Ranks of this machine that failed by themselves, the root cause among them.
        done: Ranks that had ended well before.
        outside: Signal by which somebody ended the job.
        asked: True if somebody ended the job, be it after a failure.
        killed: Ranks that did not end in the time that they had after a signal.
        grace_s: That time in seconds.
        waiting: The exchange of each rank that was in one.
        latest: The last exchange of the rank that failed first.
        progressed: True if the job has left a checkpoint.
        elsewhere: The root cause, if it is on another machine.
        lost_machine: True if a machine is gone without which the job cannot go on.
        shown: True if errors were shown as they were printed.
        logs: Folder of all that was printed.
    """

    size: int
    first: ProcessExit | None = None
    stopped: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()
    done: tuple[int, ...] = ()
    outside: Signals | None = None
    asked: bool = False
    killed: tuple[int, ...] = ()
    grace_s: float = 0.0
    waiting: Mapping[int, str] = field(default_factory=dict)
    latest: str = ""
    progressed: bool = False
    elsewhere: NodeFailure | None = None
    lost_machine: bool = False
    shown: bool = True
    logs: Path | None = None

    @property
    def well(self) -> bool:
        """True if all processes have ended by themselves, and none has failed."""
        return self.first is None and self.outside is None and self.elsewhere is None

    @property
    def by_somebody(self) -> bool:
        """True if a signal from outside has ended the job, here or on another machine."""
        return self.asked or self.outside is not None or (self.elsewhere is not None and self.elsewhere.outside)

    @property
    def code(self) -> int:
        """The exit code of the job: that of the first process to fail, 128 + n if signal n killed it."""
        if self.elsewhere is not None and (self.outside is None or self.first is None):
            return self.elsewhere.code
        if self.first is None:
            return 0
        return 128 + self.outside if self.outside is not None and self.first.status < 0 else self.first.code


def root_cause(failures: Sequence[ProcessExit]) -> ProcessExit | None:
    """Return the failure that caused the others: the first in time that has not lost a peer."""
    return min(failures, key=lambda failure: failure.order == LOST_PEER, default=None)


def blame(
    size: int,
    exits: Sequence[ProcessExit],
    failures: Sequence[ProcessExit],
    *,
    terminated: Sequence[int] = (),
    told: Collection[int] = (),
    outside: Signals | None = None,
) -> JobResult:
    """Return the result of a job whose processes have ended, with the part that each process had in its end.

    Args:
        size: Number of processes of the job.
        exits: All ends, in the order in which they came.
        failures: The ends by failure among them, in the same order.
        terminated: Ranks that ran when the launcher ended the job.
        told: Ranks that left an exception of their own.
        outside: Signal by which somebody ended the job; then the first failure by time counts.
    """
    first = next(iter(failures), None) if outside is not None else root_cause(failures)
    alone: set[int] = set()
    if failures:
        own = {ended.rank for ended in exits if ended.status and ended.rank in told}
        before = {failure.rank for failure in failures if failure.order != LOST_PEER}
        alone = (before | own) - set(terminated).difference(told)
    earlier = exits[: exits.index(failures[0])] if failures else ()
    return JobResult(
        size,
        first,
        stopped=tuple(rank for rank in terminated if rank not in alone),
        failed=tuple(sorted(alone)),
        done=tuple(sorted(ended.rank for ended in earlier if not ended.status)),
        outside=outside,
    )


def read_failure(folder: Path, rank: int, pid: int) -> FailureCause | None:
    """Return the exception of a rank, or the newest of a process that it has started, or None.

    Args:
        folder: Folder of the job.
        rank: Rank of the process.
        pid: Its process id.
    """
    files = sorted(folder.glob(f"failure-{rank}-*.json"), key=lambda file: file.stat().st_mtime)
    own = folder / f"failure-{rank}-{pid}.json"
    for file in [own] if own in files else files[::-1]:
        with suppress(OSError, ValueError, KeyError):
            left = json.loads(file.read_text(encoding="utf-8"))
            beside = f"in thread {left['thread']}: " if left["thread"] else ""
            beside = beside if left["pid"] == pid else f"in process {left['pid']} of it: {beside}"
            return FailureCause(
                left["what"], left["site"], left["traceback"], left["lost_peer"], beside, left["exchange"]
            )
    return None


def read_fault(folder: Path, rank: int, pid: int) -> FailureCause | None:
    """Return the fault of native code in a rank, with its Python line, or None.

    Args:
        folder: Folder of the job.
        rank: Rank of the process.
        pid: Its process id.
    """
    with suppress(OSError):
        text = (folder / f"fault-{rank}-{pid}").read_text(encoding="utf-8", errors="replace").strip()
        if text:
            # of several threads the current one had the fault; its innermost frame comes first
            current = text[text.find("Current thread") :].split("\n\n")[0]
            frames = [frame for frame in _FRAME.finditer(current) if not _INSTALLED.search(frame["file"])]
            site = "{file}:{line} in {function}".format(**frames[0].groupdict()) if frames else ""
            what = text.splitlines()[0]
            return FailureCause(what, site, f"{what}\n{current}")
    return None
