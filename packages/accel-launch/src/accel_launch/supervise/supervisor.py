"""Start the processes of one machine, wait for them, and end all if one fails or a signal asks for it."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from signal import Signals
from typing import final

from accel_state.errors import CannotRun
from accel_state.exit_codes import STOPPED

from accel_launch.job.plan import ProcessSpec
from accel_launch.report.job_result import LOST_PEER, JobResult, ProcessExit, blame, read_failure, read_fault
from accel_launch.supervise.output import ERR, Output
from accel_launch.supervise.process_tree import die_with_parent, reap
from accel_launch.supervise.signals import ENDING, SignalEvent, SignalSource
from accel_launch.supervise.worker import Worker

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
    """The processes of one machine, from their start to their end.

    Rank 0 reads the standard input of the launcher; the input of others is empty.

    Args:
        specs: Processes to start.
        source: Source of signals.
        folder: Folder of the job, in which processes tell why they fail. Default: none, and nothing is read.
        grace_s: Seconds that processes have after a signal from outside. Default: those of `GRACE_S`.
        output: Keeper of the output; None lets processes inherit that of the launcher.
        bound: Let processes die with this process.
        own_groups: Give each process a group, so that a signal to the group of the launcher reaches it once.
    """

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        source: SignalSource,
        *,
        folder: Path = Path(os.devnull),
        grace_s: float | None = None,
        output: Output | None = None,
        bound: bool = False,
        own_groups: bool = False,
    ) -> None:
        self.specs, self.source, self.output, self.folder = specs, source, output, folder
        self._bound, self._own_groups = bound, own_groups
        self._grace_s = GRACE_S if grace_s is None else dict.fromkeys(GRACE_S, grace_s)
        self._workers: list[Worker] = []
        #: those that have ended, and of them those that have failed by themselves, in this order
        self.exits: list[ProcessExit] = []
        self.failures: list[ProcessExit] = []
        #: the signal by which somebody has ended the job, and whether somebody has, be it after a failure
        self.outside: Signals | None = None
        self.asked = False
        self._failed_s = self._asked_s = 0.0
        self._terminated: tuple[int, ...] = ()
        self._killed: tuple[int, ...] = ()
        self._deadline_s = inf

    def start(self, on_start: Callable[[int], None] | None = None) -> None:
        """Start all processes.

        Args:
            on_start: Called with each rank once it has started.

        Raises:
            CannotRun: A process cannot be started. The caller ends the others.
        """
        for spec in self.specs:
            self._workers.append(Worker(spec, self._start(spec)))
            if on_start is not None:
                on_start(spec.rank)
        if self.output is not None:
            self.output.started()

    def run(self, on_start: Callable[[int], None] | None = None) -> JobResult:
        """Run all processes to their end. None of them is left when it returns or raises.

        Args:
            on_start: Called with each rank once it has started.

        Raises:
            CannotRun: A process cannot be started.
        """
        with self.source:
            try:
                self.start(on_start)
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
        """Act on ends and signals, after a wait of at most so many seconds. Return True once all have ended."""
        self._note_exits()
        if self.failures and self.outside is None and not self.ending:
            if not self._may_blame_another():
                self.end_others(save=self.failures[0].status == STOPPED)
            timeout_s = min(timeout_s, SHORT_WAIT_S)
        if len(self.exits) == len(self._workers):
            return True
        timeout_s = min(timeout_s, self._deadline_s - time.monotonic())
        if timeout_s <= 0:
            self._killed, self._deadline_s = self._running(), inf
            self.kill()
            return False
        event = self.source.wait(timeout_s)
        if event is not None:
            self._receive(event)
        elif self._bound:
            reap([worker.process.pid for worker in self._workers])
        return False

    @property
    def well(self) -> bool:
        """True if all processes have ended with exit code 0."""
        return len(self.exits) == len(self.specs) and not any(ended.status for ended in self.exits)

    @property
    def ending(self) -> bool:
        """True if the running processes were told to end, or have a time to end by themselves."""
        return bool(self._terminated) or self._deadline_s < inf

    def end_others(self, *, save: bool = False, grace_s: float = FAILURE_GRACE_S) -> None:
        """Send SIGTERM to the running processes, and SIGKILL after a time.

        Args:
            save: Send nothing, since the job stops on request and each process ends by itself.
            grace_s: Seconds until SIGKILL.
        """
        if save:
            self._deadline_s = time.monotonic() + self._grace_s[Signals.SIGTERM]
            return
        self._terminated = self._running()
        self._send(Signals.SIGTERM)
        self._deadline_s = time.monotonic() + grace_s

    def kill(self) -> None:
        """Send SIGKILL to the running processes, and wait for them."""
        self._send(Signals.SIGKILL)
        for worker in self._workers:
            worker.process.wait()

    def finish_output(self) -> None:
        """Wait until all output is shown, or only briefly if a signal from outside ended the job."""
        until_s = inf
        while self.output is not None and not self.output.finish(SHORT_WAIT_S) and time.monotonic() < until_s:
            event = self.source.wait(0)
            self.asked = self.asked or (event is not None and event.number in ENDING)
            if self.asked:
                until_s = min(until_s, time.monotonic() + UNREAD_S)

    def result(self) -> JobResult:
        """Return how the job has ended."""
        told = {worker.spec.rank for worker in self._workers if worker.has_said(self.folder)}
        blamed = blame(
            len(self.specs),
            self.exits,
            self.failures,
            terminated=self._terminated,
            told=told,
            outside=self.outside,
        )
        return replace(
            blamed,
            asked=self.asked,
            killed=self._killed,
            grace_s=self._grace_s[self.outside] if self.outside is not None else 0.0,
            shown=self.output is None or ERR in self.output.shown,
            logs=self.output.folder if self.output is not None else None,
        )

    def _start(self, spec: ProcessSpec) -> subprocess.Popen[bytes]:
        parent = os.getpid()

        def prepare() -> None:
            if spec.cores:
                os.sched_setaffinity(0, spec.cores)
            self.source.in_child()
            if self._bound:
                die_with_parent(parent)

        try:
            out, errors = self.output.of(spec.rank) if self.output is not None else (None, None)
            return subprocess.Popen(
                spec.command,
                env=spec.environ,
                stdin=None if spec.rank == 0 else subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                pass_fds=spec.descriptors,
                process_group=0 if self._own_groups else None,
                preexec_fn=prepare if spec.cores or self._bound else None,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise CannotRun(f"start rank {spec.rank}", [f"{spec.command[0]} in {os.getcwd()}: {error}"]) from error

    def _running(self) -> tuple[int, ...]:
        """Return the ranks that still run."""
        return tuple(worker.spec.rank for worker in self._workers if worker.status() is None)

    def _send(self, number: Signals) -> None:
        for worker in self._workers:
            worker.send(number)

    def _note_exits(self) -> None:
        """Record the processes that have ended, and which of them failed."""
        exits = [self._exit(worker) for worker in self._workers if not worker.noted and worker.status() is not None]
        # of several at once a killed one first, since losing a peer is an exit
        exits.sort(key=lambda ended: (ended.status > 0, ended.rank))
        self.exits += exits
        if not self.failures:
            self._failed_s = time.monotonic()
        # those that die by the signals that end them have not failed
        ours = (0, -Signals.SIGTERM, -Signals.SIGKILL) if self._terminated else (0,)
        self.failures += [ended for ended in exits if ended.status not in ours]

    def _exit(self, worker: Worker) -> ProcessExit:
        """Return how a process has ended, and why."""
        worker.noted = True
        status, pid, rank = worker.process.returncode, worker.process.pid, worker.spec.rank
        read = read_failure if status > 0 or status == -Signals.SIGINT else read_fault
        # what a signal from outside kills has no cause of its own
        cause = read(self.folder, rank, pid) if status not in (0, -Signals.SIGKILL, -Signals.SIGTERM) else None
        return ProcessExit(rank, pid, status, worker.spec.command, worker.peak_bytes, cause)

    def _may_blame_another(self) -> bool:
        """Return True if another process may still turn out to be the cause of the failures so far."""
        if any(failure.order != LOST_PEER for failure in self.failures):
            return False
        since_s = time.monotonic() - self._failed_s
        # one that has left an exception is about to end by it
        soon = (worker.status() is None and worker.has_said(self.folder) for worker in self._workers)
        return since_s < PEER_S or (since_s < SAID_S and any(soon))

    def _receive(self, event: SignalEvent) -> None:
        now_s = time.monotonic()
        if event.number not in ENDING:
            self._send(event.number)
            return
        again, self.asked = self.asked, True
        if self.outside is None and not self.failures and not self._terminated:
            self.outside, self._asked_s = event.number, now_s
            self._deadline_s = now_s + self._grace_s[event.number]
            if self._own_groups or not event.from_terminal:
                self._send(event.number)
        elif not again and self.failures and self.failures[0].status == STOPPED:
            self._asked_s = now_s  # the others save, as they were asked to
        elif now_s - self._asked_s >= ECHO_S:
            self._deadline_s = now_s
