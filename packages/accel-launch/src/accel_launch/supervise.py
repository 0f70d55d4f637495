"""Starts the processes of a job, waits for them, and ends them all when one fails or somebody asks for it."""

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from signal import Signals

from accel_state.errors import CannotRun
from accel_state.exits import STOPPED

from accel_launch.plan import ProcessSpec
from accel_launch.signals import ENDING, Inbox, Received

# Between SIGTERM and SIGKILL for the others, after one process has failed.
FAILURE_GRACE_S = 3.0
# How long processes have after a signal from outside; only those with a handler for SIGTERM outlive it, to save.
GRACE_S = {Signals.SIGINT: 4.0, Signals.SIGTERM: 30.0, Signals.SIGHUP: 30.0}
# A second signal within this time is the same one, sent to the process and to its group (coreutils timeout).
ECHO_S = 1.0
# How long processes have to end by themselves when a notebook is interrupted: they had the interrupt as well.
INTERRUPT_GRACE_S = 1.0
LONGEST_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that has ended; `status` is its exit code, or minus the signal that killed it."""

    rank: int
    pid: int
    status: int
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended: which process failed `first`, and which were `stopped` because of it.

    `outside` is the signal by which somebody ended the job; `killed` are those that did not end in the time they had;
    `waiting` says of ranks in the middle of an exchange which one that was, `grace_s` how long that time was,
    and `progressed` whether it has left a checkpoint.
    """

    size: int
    first: Ended | None = None
    stopped: tuple[int, ...] = ()
    outside: Signals | None = None
    killed: tuple[int, ...] = ()
    waiting: Mapping[int, str] = field(default_factory=dict)
    grace_s: float = 0.0
    progressed: bool = False

    @property
    def code(self) -> int:
        """The exit code of the job: that of the first process to fail, 128 + n where signal n killed it."""
        if self.first is None:
            return 0
        if self.outside is not None and self.first.status < 0:
            return 128 + self.outside
        return self.first.status if self.first.status > 0 else 128 - self.first.status


@dataclass(slots=True)
class _Crew:
    """The processes of one job, and what has happened to them so far."""

    grace_s: Mapping[Signals, float] = field(default_factory=lambda: dict(GRACE_S))
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    first: Ended | None = None
    stopped: tuple[int, ...] = ()
    outside: Signals | None = None
    outside_time_s: float = 0.0
    deadline_s: float | None = None
    killed: tuple[int, ...] = ()

    def running(self) -> dict[int, subprocess.Popen[bytes]]:
        return {rank: process for rank, process in enumerate(self.processes) if process.poll() is None}

    def send(self, number: Signals) -> None:
        for process in self.running().values():
            process.send_signal(number)

    def kill(self) -> None:
        self.send(Signals.SIGKILL)
        for process in self.processes:
            process.wait()

    def note_failures(self, specs: Sequence[ProcessSpec], reported: set[int]) -> None:
        """Blames the first process that failed; of several at once a killed one, since losing a peer is an exit."""
        ended = [
            Ended(rank, process.pid, process.returncode, specs[rank].command)
            for rank, process in enumerate(self.processes)
            if process.poll() is not None and rank not in reported
        ]
        reported.update(each.rank for each in ended)
        failed = [each for each in ended if each.status != 0]
        if not failed or self.first is not None:
            return
        self.first = min(failed, key=lambda each: (each.status > 0, each.rank))
        if self.outside is None and self.first.status == STOPPED:
            self.deadline_s = time.monotonic() + self.grace_s[Signals.SIGTERM]  # all stop, each when it can
        elif self.outside is None:
            self.stopped = tuple(self.running())
            self.send(Signals.SIGTERM)
            self.deadline_s = time.monotonic() + FAILURE_GRACE_S

    def receive(self, received: Received) -> None:
        now_s = time.monotonic()
        if received.number not in ENDING:
            self.send(received.number)
        elif self.outside is None and self.first is None:
            self.outside, self.outside_time_s = received.number, now_s
            self.deadline_s = now_s + self.grace_s[received.number]
            if not received.from_terminal:
                self.send(received.number)
        elif now_s - self.outside_time_s >= ECHO_S:
            self.deadline_s = now_s


def supervise(
    specs: Sequence[ProcessSpec],
    *,
    inbox: Inbox,
    before_exec: Callable[[], None] | None = None,
    on_start: Callable[[int], None] | None = None,
    grace_s: float | None = None,
) -> Outcome:
    """Runs all the processes to their end; none of them is left when it returns or raises.

    Rank 0 reads the standard input of the launcher, the others find theirs empty. `on_start` is told each rank once it
    has started. After a signal from outside they have `grace_s` to end.

    Raises: CannotRun if a process cannot be started.
    """
    graces = dict(GRACE_S)
    if grace_s is not None:
        graces = dict.fromkeys(GRACE_S, grace_s)
    crew = _Crew(graces)
    with inbox:
        try:
            for rank, spec in enumerate(specs):
                crew.processes.append(_start(rank, spec, before_exec))
                if on_start is not None:
                    on_start(rank)
            _watch(crew, specs, inbox)
        except KeyboardInterrupt:
            _let_end(crew)
            raise
        finally:
            crew.kill()
    waited = graces[crew.outside] if crew.outside is not None else 0.0
    return Outcome(len(specs), crew.first, crew.stopped, crew.outside, crew.killed, grace_s=waited)


def _start(rank: int, spec: ProcessSpec, before_exec: Callable[[], None] | None) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            spec.command,
            env=dict(spec.environ),
            stdin=None if rank == 0 else subprocess.DEVNULL,
            pass_fds=spec.descriptors,
            preexec_fn=before_exec,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotRun(f"start rank {rank}", [f"{spec.command[0]} in {os.getcwd()}: {error}"]) from error


def _watch(crew: _Crew, specs: Sequence[ProcessSpec], inbox: Inbox) -> None:
    reported: set[int] = set()
    while True:
        crew.note_failures(specs, reported)
        if len(reported) == len(crew.processes):
            return
        left_s = LONGEST_WAIT_S
        if crew.deadline_s is not None:
            left_s = min(left_s, crew.deadline_s - time.monotonic())
            if left_s <= 0:
                crew.killed = tuple(crew.running())
                crew.kill()
                crew.deadline_s = None
                continue
        received = inbox.wait(left_s)
        if received is not None:
            crew.receive(received)


def _let_end(crew: _Crew) -> None:
    until_s = time.monotonic() + INTERRUPT_GRACE_S
    while crew.running() and time.monotonic() < until_s:
        time.sleep(0.01)
