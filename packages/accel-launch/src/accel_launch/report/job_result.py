"""Describe how a job ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGABRT, Signals
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accel_launch.nodes.peers import NodeFailure
    from accel_launch.report.failure_cause import FailureCause

#: whose failure comes first: one that was killed, one that says why, one that has lost a peer
KILLED, SAID, LOST_PEER = 0, 1, 2


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

    #: how many processes the job has on all machines
    size: int
    #: the process whose failure is the root cause, and the ranks that were ended because of it
    first: ProcessExit | None = None
    stopped: tuple[int, ...] = ()
    #: the ranks of this machine that failed by themselves, the root cause among them
    failed: tuple[int, ...] = ()
    #: the ranks that had ended well before
    done: tuple[int, ...] = ()
    #: the signal by which somebody ended the job, and whether somebody did, be it after a failure
    outside: Signals | None = None
    asked: bool = False
    #: the ranks that did not end in the time that they had after a signal, and that time
    killed: tuple[int, ...] = ()
    grace_s: float = 0.0
    #: the exchange in which each rank was that was in one, and the last exchange of the rank that failed first
    waiting: Mapping[int, str] = field(default_factory=dict)
    latest: str = ""
    #: whether the job has left a checkpoint
    progressed: bool = False
    #: the root cause if it is on another machine, and whether a machine is gone without which the job cannot go on
    elsewhere: NodeFailure | None = None
    lost_machine: bool = False
    #: whether errors were shown as they were printed, and the folder of all that was printed
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
