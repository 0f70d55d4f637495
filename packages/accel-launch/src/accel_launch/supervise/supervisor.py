"""Starts the processes of one machine, waits for them, and ends them all if one fails or somebody asks for it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from signal import Signals
from typing import final

from accel_state.errors import CannotRun
from accel_state.exit_codes import STOPPED

from accel_launch.job.plan import ProcessSpec
from accel_launch.report.failure_cause import read_failure, read_fault
from accel_launch.report.job_result import LOST_PEER, JobResult, ProcessExit, root_cause
from accel_launch.supervise.output import ERR, Output
from accel_launch.supervise.process_tree import die_with_parent, reap
from accel_launch.supervise.signals import ENDING, SignalEvent, SignalSource

#: seconds between SIGTERM and SIGKILL for the others, after one process has failed
FAILURE_GRACE_S = 3.0
#: seconds that processes have after a signal from outside; only those with a handler for SIGTERM outlive it, to save
GRACE_S = {Signals.SIGINT: 4.0, Signals.SIGTERM: 30.0, Signals.SIGHUP: 30.0}
#: a second signal within so many seconds is the same one, sent to the process and to its group (coreutils timeout)
ECHO_S = 1.0
#: seconds in which a process that another one has lost may still say why it fails, and end
PEER_S = 1.5
#: seconds in which a process that has said why it fails has to end
SAID_S = 10.0
#: seconds that a wait may last at most, and at most if something may turn out
LONGEST_WAIT_S, SHORT_WAIT_S = 1.0, 0.05
#: seconds that output that nobody reads is waited for, once somebody has ended the job
UNREAD_S = 2.0


@final
class Supervisor:
    """The processes of one machine from their start to their end; `step` has to be called until it is True.

    Rank 0 reads the standard input of the launcher, the others find theirs empty. With `tied` they die with this
    process. If they are `apart`, each leads a process group of its own, so that what is sent to that of this process
    reaches them once. `folder` is that of the job, in which processes tell why they fail.
    """

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        source: SignalSource,
        *,
        folder: Path | None = None,
        grace_s: float | None = None,
        output: Output | None = None,
        tied: bool = False,
        apart: bool = False,
    ) -> None:
        self.specs, self.source, self.output = specs, source, output
        self._folder, self._tied, self._apart = folder, tied, apart
        self._grace_s = GRACE_S if grace_s is None else dict.fromkeys(GRACE_S, grace_s)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._peaks: dict[int, int] = {}
        #: those that have ended, in this order
        self.exits: list[ProcessExit] = []
        #: those that have failed by themselves
        self.failures: list[ProcessExit] = []
        self.first: ProcessExit | None = None
        #: the signal by which somebody has ended the job, and whether somebody has, be it after a failure
        self.outside: Signals | None = None
        self.asked = False
        self._first_s = self._outside_s = 0.0
        self._ending = False
        self._deadline_s: float | None = None
        self._done: tuple[int, ...] = ()
        self._stopped: tuple[int, ...] = ()
        self._killed: tuple[int, ...] = ()

    def start(self, on_start: Callable[[int], None] | None = None) -> None:
        """Starts all processes; `on_start` is told each rank once it has started.

        Raises: CannotRun if one cannot be started; the others are ended then.
        """
        try:
            for spec in self.specs:
                self._processes.append(self._start(spec))
                if on_start is not None:
                    on_start(spec.rank)
        except BaseException:
            self.kill()
            raise
        if self.output is not None:
            self.output.started()

    def run(self, on_start: Callable[[int], None] | None = None) -> JobResult:
        """Runs all processes to their end; none of them is left when it returns or raises.

        Raises: CannotRun if a process cannot be started.
        """
        with self.source:
            self.start(on_start)
            try:
                while not self.step(LONGEST_WAIT_S):
                    pass
            except KeyboardInterrupt:
                until_s = time.monotonic() + SHORT_WAIT_S * 20  # they had the interrupt as well
                while self._running() and time.monotonic() < until_s:
                    time.sleep(SHORT_WAIT_S)
                raise
            finally:
                self.kill()
            self.finish_output()
        return self.result()

    def step(self, timeout_s: float) -> bool:
        """Waits once, and does what is to be done; whether all processes have ended."""
        self._note_exits()
        if self.first is not None and self.outside is None and self._deadline_s is None and not self._ending:
            if not self._may_blame_another():
                self.end_others(save=self.first.status == STOPPED)
            timeout_s = min(timeout_s, SHORT_WAIT_S)
        if len(self.exits) == len(self._processes):
            return True
        if self._deadline_s is not None:
            timeout_s = min(timeout_s, self._deadline_s - time.monotonic())
            if timeout_s <= 0:
                self._killed, self._deadline_s = tuple(self._running()), None
                self.kill()
                return False
        event = self.source.wait(timeout_s)
        if event is not None:
            self._receive(event)
        elif self._tied:
            reap([process.pid for process in self._processes])
        return False

    @property
    def well(self) -> bool:
        """Whether all processes have ended with exit code 0."""
        return len(self.exits) == len(self.specs) and all(one.status == 0 for one in self.exits)

    @property
    def ending(self) -> bool:
        """Whether the processes that run were told to end, or have a time to end by themselves."""
        return self._ending or self._deadline_s is not None

    def end_others(self, *, save: bool = False, grace_s: float | None = None) -> None:
        """Ends the processes that run, in seconds; with `save` each by itself, since the job stops on request."""
        if save:
            self._deadline_s = time.monotonic() + self._grace_s[Signals.SIGTERM]
            return
        self._ending = True
        self._stopped = tuple(self._running())
        self._send(Signals.SIGTERM)
        self._deadline_s = time.monotonic() + (grace_s or FAILURE_GRACE_S)

    def kill(self) -> None:
        """Kills what still runs."""
        self._send(Signals.SIGKILL)
        for process in self._processes:
            process.wait()

    def finish_output(self) -> None:
        """Returns when all that was printed is shown; if somebody has ended the job, not much later."""
        until_s = None
        while self.output is not None and not self.output.finish(SHORT_WAIT_S):
            event = self.source.wait(0)
            self.asked = self.asked or (event is not None and event.number in ENDING)
            until_s = until_s or (time.monotonic() + UNREAD_S if self.asked else None)
            if until_s is not None and time.monotonic() >= until_s:
                return

    def result(self) -> JobResult:
        """How the job has ended."""
        # after a signal it is the first by time
        first = self.first if self.outside is not None else root_cause(self.failures)
        ours = (-Signals.SIGTERM, -Signals.SIGKILL)
        # one that ended by the default action of a signal has printed nothing after the first failure
        silent = all(one.status in ours for one in self.exits if one.rank in self._stopped)
        return JobResult(
            len(self.specs),
            first,
            tuple(rank for rank in self._stopped if first is None or rank != first.rank),
            done=self._done,
            outside=self.outside,
            asked=self.asked,
            killed=self._killed,
            grace_s=self._grace_s[self.outside] if self.outside is not None else 0.0,
            last=silent and len(self.failures) <= 1,
            shown=self.output is None or ERR in self.output.shown,
            logs=self.output.folder if self.output is not None else None,
        )

    def _start(self, spec: ProcessSpec) -> subprocess.Popen[bytes]:
        parent = os.getpid()

        def prepare() -> None:
            if spec.cores:
                os.sched_setaffinity(0, spec.cores)
            self.source.in_child()
            if self._tied:
                die_with_parent(parent)

        try:
            out, errors = self.output.of(spec.rank) if self.output is not None else (None, None)
            return subprocess.Popen(
                spec.command,
                env=dict(spec.environ),
                stdin=None if spec.rank == 0 else subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                pass_fds=spec.descriptors,
                process_group=0 if self._apart else None,
                preexec_fn=prepare if spec.cores or self._tied else None,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise CannotRun(f"start rank {spec.rank}", [f"{spec.command[0]} in {os.getcwd()}: {error}"]) from error

    def _running(self) -> list[int]:
        """The ranks that still run."""
        ended = {one.rank for one in self.exits}
        pairs = zip(self.specs, self._processes, strict=False)
        return [spec.rank for spec, process in pairs if spec.rank not in ended and self._status(process) is None]

    def _status(self, process: subprocess.Popen[bytes]) -> int | None:
        """The exit code of a process that has ended; the memory that it took is noted."""
        if process.returncode is None and sys.platform == "linux":
            with suppress(ChildProcessError):
                pid, status, usage = os.wait4(process.pid, os.WNOHANG)
                if pid:
                    self._peaks[pid] = usage.ru_maxrss * 1024
                    process.returncode = os.waitstatus_to_exitcode(status)
        return process.poll()

    def _send(self, number: Signals) -> None:
        for process in self._processes:
            if self._status(process) is None:
                process.send_signal(number)
                if number == Signals.SIGTERM:
                    process.send_signal(Signals.SIGCONT)  # one that is stopped hears of nothing

    def _note_exits(self) -> None:
        """Notes the processes that have ended, and the first of them that failed."""
        known = {one.rank for one in self.exits}
        pairs = zip(self.specs, self._processes, strict=True)
        found = [self._exit(spec, process) for spec, process in pairs if spec.rank not in known]
        ended = [one for one in found if one is not None]
        # of several at once a killed one first, since losing a peer is an exit
        ended.sort(key=lambda one: (one.status > 0, one.rank))
        self.exits += ended
        # those that die by the signals that end them have not failed
        ours = (0, -Signals.SIGTERM, -Signals.SIGKILL) if self._ending else (0,)
        self.failures += [one for one in ended if one.status not in ours]
        if self.first is None and self.failures and not self._ending:
            self.first, self._first_s = self.failures[0], time.monotonic()
            self._done = tuple(sorted(one.rank for one in self.exits if one.status == 0))

    def _exit(self, spec: ProcessSpec, process: subprocess.Popen[bytes]) -> ProcessExit | None:
        """How a process has ended, and why; None while it runs."""
        status = self._status(process)
        if status is None:
            return None
        cause, folder = None, self._folder
        if status and folder is not None:
            read = read_failure if status > 0 or status == -Signals.SIGINT else read_fault
            cause = read(folder, spec.rank, process.pid)
        return ProcessExit(spec.rank, process.pid, status, spec.command, self._peaks.get(process.pid, 0), cause)

    def _may_blame_another(self) -> bool:
        """Whether another process may still turn out to be the cause of the failures so far."""
        culprit = root_cause(self.failures)
        if culprit is None or culprit.order != LOST_PEER:
            return False
        since_s = time.monotonic() - self._first_s
        return since_s < PEER_S or (since_s < SAID_S and self._has_said())

    def _has_said(self) -> bool:
        """Whether a process that runs has left an exception, and is about to end by it."""
        folder, running = self._folder, self._running()
        pairs = [pair for pair in zip(self.specs, self._processes, strict=True) if pair[0].rank in running]
        causes = [read_failure(folder, spec.rank, one.pid) for spec, one in pairs] if folder is not None else []
        return any(cause is not None and not cause.lost_peer and not cause.beside for cause in causes)

    def _receive(self, event: SignalEvent) -> None:
        now_s = time.monotonic()
        if event.number not in ENDING:
            self._send(event.number)
            return
        again, self.asked = self.asked, True
        if self.outside is None and self.first is None and not self._ending:
            self.outside, self._outside_s = event.number, now_s
            self._deadline_s = now_s + self._grace_s[event.number]
            if self._apart or not event.from_terminal:
                self._send(event.number)
        elif not again and self.first is not None and self.first.status == STOPPED:
            self._outside_s = now_s  # the others save, as they were asked to
        elif now_s - self._outside_s >= ECHO_S:
            self._deadline_s = now_s
