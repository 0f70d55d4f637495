"""Starts the processes of a job, waits for them, and ends them all when one fails or somebody asks for it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from signal import Signals
from typing import TYPE_CHECKING

from accel_state.errors import CannotRun
from accel_state.exits import STOPPED

from accel_launch.blame import PEER_S, WORDS_S, blamed, may_name_another
from accel_launch.lifeline import reap
from accel_launch.outcome import OF_A_PEER, Ended, Outcome
from accel_launch.plan import ProcessSpec
from accel_launch.signals import ENDING, Inbox, Received
from accel_launch.streams import Streams

if TYPE_CHECKING:
    from accel_launch.elsewhere import Elsewhere, Fleet

# Between SIGTERM and SIGKILL for the others, after one process has failed.
FAILURE_GRACE_S = 3.0
# How long processes have after a signal from outside; only those with a handler for SIGTERM outlive it, to save.
GRACE_S = {Signals.SIGINT: 4.0, Signals.SIGTERM: 30.0, Signals.SIGHUP: 30.0}
# A second signal within this time is the same one, sent to the process and to its group (coreutils timeout).
ECHO_S = 1.0
# How long processes have to end by themselves when a notebook is interrupted: they had the interrupt as well.
INTERRUPT_GRACE_S = 1.0
LONGEST_WAIT_S = 1.0
# How often other machines are listened to.
LISTEN_S = 0.1


class _Crew:
    """The processes of one job, and what has happened to them so far."""

    def __init__(
        self,
        grace_s: Mapping[Signals, float],
        others: Fleet | None,
        on_failure: Callable[[Ended, Signals | None], None] | None,
        streams: Streams | None,
        apart: bool,
        adopts: bool,
    ) -> None:
        self.grace_s, self.others, self.on_failure, self.streams = grace_s, others, on_failure, streams
        #: whether a signal to the process group of this process reaches no other one
        self.apart = apart
        #: whether what processes leave behind are children of this process
        self.adopts = adopts
        self.processes: list[subprocess.Popen[bytes]] = []
        self.peaks: dict[int, int] = {}
        self.failures: list[Ended] = []
        self.well: list[Ended] = []
        self.done: tuple[int, ...] = ()
        self.first: Ended | None = None
        self.first_s = 0.0
        self.elsewhere: Elsewhere | None = None
        self.elsewhere_s = 0.0
        self.outside: Signals | None = None
        self.outside_s = 0.0
        self.asked = False
        self.ending = False
        self.deadline_s: float | None = None
        self.stopped: tuple[int, ...] = ()
        self.killed: tuple[int, ...] = ()

    def running(self) -> dict[int, subprocess.Popen[bytes]]:
        return {at: process for at, process in enumerate(self.processes) if self.status(process) is None}

    def status(self, process: subprocess.Popen[bytes]) -> int | None:
        """The exit code of a process that has ended; the memory that it took is noted."""
        if process.returncode is None and sys.platform == "linux":
            with suppress(ChildProcessError):
                pid, status, usage = os.wait4(process.pid, os.WNOHANG)
                if pid:
                    self.peaks[pid] = usage.ru_maxrss * 1024
                    process.returncode = os.waitstatus_to_exitcode(status)
        return process.poll()

    def send(self, number: Signals) -> None:
        for process in self.running().values():
            process.send_signal(number)
            if number == Signals.SIGTERM:
                process.send_signal(Signals.SIGCONT)  # one that is stopped hears of nothing

    def kill(self) -> None:
        self.send(Signals.SIGKILL)
        for process in self.processes:
            process.wait()

    def note_failures(self, specs: Sequence[ProcessSpec], reported: set[int]) -> None:
        """Ends the others when the first process has failed, and notes all that fail by themselves."""
        ended = [
            Ended(specs[at].rank, process.pid, status, specs[at].command, self.peaks.get(process.pid, 0))
            for at, process in enumerate(self.processes)
            if (status := self.status(process)) is not None and at not in reported
        ]
        reported.update(at for at, process in enumerate(self.processes) if process.returncode is not None)
        self.well += [each for each in ended if each.status == 0]
        # those that die by the signals that end them have not failed
        ours = (-Signals.SIGTERM, -Signals.SIGKILL) if self.ending else ()
        failed = [each for each in ended if each.status != 0 and each.status not in ours]
        if not failed:
            return
        # of several at once a killed one, since losing a peer is an exit
        failed.sort(key=lambda each: (each.status > 0, each.rank))
        self.failures += failed
        if self.on_failure is not None and not self.ending:
            for each in failed:
                self.on_failure(each, self.outside)
        if self.streams is not None:
            self.streams.hurry()
        if self.first is None and self.elsewhere is None:
            self.first, self.first_s = failed[0], time.monotonic()
            self.done = tuple(sorted(each.rank for each in self.well))

    @property
    def undecided(self) -> bool:
        """Whether a process has failed, and nothing has been done about it."""
        return self.first is not None and self.outside is None and self.deadline_s is None and not self.ending

    def decide(self, specs: Sequence[ProcessSpec]) -> None:
        """Ends the others, once it is known which process has failed by itself."""
        if self.first is not None and self.undecided:
            tails = self.streams.tails() if self.streams is not None else {}
            if not tails or not may_name_another(self.failures, tails, time.monotonic() - self.first_s):
                self.end_others(self.first.status == STOPPED, specs)

    def end_others(self, on_request: bool, specs: Sequence[ProcessSpec]) -> None:
        """Ends those that still run; each when it can, where the job has saved and stops on request."""
        if on_request:
            self.deadline_s = time.monotonic() + self.grace_s[Signals.SIGTERM]
            return
        self.ending = True
        self.stopped = tuple(specs[at].rank for at in self.running())
        self.send(Signals.SIGTERM)
        self.deadline_s = time.monotonic() + FAILURE_GRACE_S

    def listen(self, specs: Sequence[ProcessSpec]) -> None:
        """Ends the job where another machine says so."""
        heard = self.others.heard() if self.others is not None else None
        if heard is not None and self.elsewhere is None:
            self.elsewhere, self.elsewhere_s = heard, time.monotonic()
        there = self.elsewhere
        if there is None or self.first is not None or self.outside is not None or self.ending or self.deadline_s:
            return
        # one that has lost a peer may have lost one of this machine, which is still to say why
        if there.place != OF_A_PEER or time.monotonic() - self.elsewhere_s >= PEER_S:
            self.end_others(there.code == STOPPED, specs)
            if there.outside:
                self.deadline_s = time.monotonic() + self.grace_s[Signals.SIGTERM]

    def told(self, inbox: Inbox) -> bool:
        """Whether somebody has ended the job; where others are waited for, signals still arrive."""
        received = inbox.wait(0) if self.others is not None else None
        self.asked = self.asked or (received is not None and received.number in ENDING)
        return self.asked

    def receive(self, received: Received) -> None:
        now_s = time.monotonic()
        if received.number not in ENDING:
            self.send(received.number)
            return
        again, self.asked = self.asked, True
        if self.outside is None and self.first is None and self.elsewhere is None:
            self.outside, self.outside_s = received.number, now_s
            self.deadline_s = now_s + self.grace_s[received.number]
            if self.apart or not received.from_terminal:
                self.send(received.number)
        elif not again and self.first is not None and self.first.status == STOPPED:
            self.outside_s = now_s  # the others save, as they were asked to
        elif now_s - self.outside_s >= ECHO_S:
            self.deadline_s = now_s


def supervise(
    specs: Sequence[ProcessSpec],
    *,
    inbox: Inbox,
    before_exec: Callable[[], None] | None = None,
    on_start: Callable[[int], None] | None = None,
    grace_s: float | None = None,
    streams: Streams | None = None,
    others: Fleet | None = None,
    on_failure: Callable[[Ended, Signals | None], None] | None = None,
    apart: bool = False,
) -> Outcome:
    """Runs all the processes to their end; none of them is left when it returns or raises.

    Rank 0 reads the standard input of the launcher, the others find theirs empty. `on_start` is told each rank once it
    has started, and `on_failure` each that has failed by itself. After a signal from outside they have `grace_s` to
    end. What they print goes through `streams`, and they end when `others` say so. Where they are `apart`, each leads a
    process group of its own, so that what is sent to that of this process reaches them once.

    Raises: CannotRun if a process cannot be started.
    """
    graces = dict(GRACE_S)
    if grace_s is not None:
        graces = dict.fromkeys(GRACE_S, grace_s)
    crew = _Crew(graces, others, on_failure, streams, apart, adopts=before_exec is not None)
    with inbox:
        try:
            for spec in specs:
                crew.processes.append(_start(spec, before_exec, streams, apart))
                if on_start is not None:
                    on_start(spec.rank)
            if streams is not None:
                streams.started()
            _watch(crew, specs, inbox)
        except KeyboardInterrupt:
            _let_end(crew)
            raise
        finally:
            crew.kill()
    if streams is not None:
        with others.beating() if others is not None else nullcontext():
            streams.finish(partial(crew.told, inbox))
    tails = streams.tails() if streams is not None else {}
    # after a signal it is the first by time, unless another machine was told of one sooner
    first = crew.first if crew.outside is not None and crew.first is not None else blamed(crew.failures, tails)
    return Outcome(
        len(specs),
        first,
        tuple(rank for rank in crew.stopped if first is None or rank != first.rank),
        outside=crew.outside,
        asked=crew.asked,
        done=crew.done,
        killed=crew.killed,
        grace_s=graces[crew.outside] if crew.outside is not None else 0.0,
        elsewhere=crew.elsewhere,
        said=tails.get(first.rank, "") if first is not None and streams is not None else None,
        last=streams is None or first is None or streams.newest == first.rank,
        shown=streams is None or streams.shows_errors,
        logs=streams.folder if streams is not None else None,
    )


def _start(
    spec: ProcessSpec, before_exec: Callable[[], None] | None, streams: Streams | None, apart: bool
) -> subprocess.Popen[bytes]:
    def prepare() -> None:
        if spec.cores:
            os.sched_setaffinity(0, spec.cores)
        if before_exec is not None:
            before_exec()

    rank = spec.rank
    try:
        out, errors = streams.of(rank) if streams is not None else (None, None)
        return subprocess.Popen(
            spec.command,
            env=dict(spec.environ),
            stdin=None if rank == 0 else subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            pass_fds=spec.descriptors,
            process_group=0 if apart else None,
            preexec_fn=prepare if spec.cores or before_exec is not None else None,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotRun(f"start rank {rank}", [f"{spec.command[0]} in {os.getcwd()}: {error}"]) from error


def _watch(crew: _Crew, specs: Sequence[ProcessSpec], inbox: Inbox) -> None:
    reported: set[int] = set()
    while True:
        crew.note_failures(specs, reported)
        crew.decide(specs)
        crew.listen(specs)
        if len(reported) == len(crew.processes):
            return
        left_s = LONGEST_WAIT_S if crew.others is None else LISTEN_S
        if crew.undecided:
            left_s = WORDS_S
        if crew.deadline_s is not None:
            left_s = min(left_s, crew.deadline_s - time.monotonic())
            if left_s <= 0:
                crew.killed = tuple(specs[at].rank for at in crew.running())
                crew.kill()
                crew.deadline_s = None
                continue
        received = inbox.wait(left_s)
        if received is not None:
            crew.receive(received)
        elif crew.adopts:
            reap([process.pid for process in crew.processes])


def _let_end(crew: _Crew) -> None:
    until_s = time.monotonic() + INTERRUPT_GRACE_S
    while crew.running() and time.monotonic() < until_s:
        time.sleep(0.01)
