"""Start a worker, send it calls, and read its answers."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext
from typing import final

from accel_testing.message import STOP, Done, Failed
from accel_testing.time_limits import stretched
from accel_testing.worker import serve
from accel_testing.worker_spec import WorkerSpec

NAME = "accel-testing-rank-"
STACKS_WITHIN_S = 1.0


@final
class Died:
    """A worker that ended without an answer: `how` has its exit code or signal."""

    def __init__(self, exit_code: int | None) -> None:
        self.how = f"exit code {exit_code}"
        if exit_code is not None and exit_code < 0:
            self.how = f"signal {signal.Signals(-exit_code).name}"


@final
class WorkerHandle:
    """A worker process that was started for a rank of a pool, and serves no other pool."""

    def __init__(self, spec: WorkerSpec, context: ForkServerContext) -> None:
        self.spec = spec
        self.pipe, theirs = context.Pipe()
        # not a daemon: a DataLoader in the worker must be allowed to have children
        self.process = context.Process(target=serve, args=(spec, theirs), name=f"{NAME}{spec.rank}", daemon=False)
        self.process.start()
        theirs.close()
        self._pid = self.process.pid

    def send(self, message: bytes) -> None:
        """Send a message. A worker that has died is found by `answer`."""
        with suppress(OSError):
            self.pipe.send_bytes(message)

    def answer(self) -> Done | Failed | Died:
        """Return the answer of a worker whose pipe or sentinel is ready.

        Returns:
            The whole answer, or Died if there is none in the pipe. A worker gets one second to end, times the factor.
        """
        try:
            if self.pipe.poll():
                answer: Done | Failed = pickle.loads(self.pipe.recv_bytes())
                return answer
        except (EOFError, OSError):
            pass
        self.process.join(timeout=stretched(1))
        return Died(self.process.exitcode)

    def output(self) -> str:
        """Return the output of the worker until now."""
        return self.spec.output.read_text("utf-8", errors="replace") if self.spec.output.exists() else ""

    def kill(self) -> None:
        """Kill the worker and all processes of its group.

        A process that has begun a session or a group of its own survives.
        """
        if self._pid is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)
        self.process.kill()
        self.process.join()

    def close(self) -> None:
        """Free the pipe and the process object of a worker that has ended."""
        self.pipe.close()
        self.process.close()


def stacks(handles: Sequence[WorkerHandle]) -> dict[int, str]:
    """Return the Python stacks of running workers, by rank.

    A worker that shows none within a second, times the factor, gets a line that says so.
    """
    for handle in handles:
        if handle.process.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(handle.process.pid, signal.SIGUSR1)
    texts = {handle.spec.rank: "" for handle in handles}
    deadline = time.monotonic() + stretched(STACKS_WITHIN_S)
    while time.monotonic() < deadline:
        time.sleep(0.05)
        files = {handle.spec.rank: handle.spec.stacks for handle in handles}
        now = {rank: file.read_text() if file.exists() else "" for rank, file in files.items()}
        # written by a signal handler, line by line: whole when it has stopped growing
        if now == texts and all(now.values()):
            break
        texts = now
    return {rank: text or "(no stack came back: SIGUSR1 is blocked or taken)\n" for rank, text in texts.items()}


def collect(handles: Sequence[WorkerHandle], *, timeout_s: float, grace_s: float) -> dict[int, Done | Failed | Died]:
    """Return answers by rank, without ranks that were late.

    Args:
        handles: Workers that were sent a call.
        timeout_s: Seconds until a rank is late.
        grace_s: Seconds that the other ranks have after the first failure.
    """
    deadline = time.monotonic() + timeout_s
    waiting = list(handles)
    answers: dict[int, Done | Failed | Died] = {}
    while waiting:
        sources = [source for handle in waiting for source in (handle.pipe, handle.process.sentinel)]
        ready = wait(sources, timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        for handle in [handle for handle in waiting if handle.pipe in ready or handle.process.sentinel in ready]:
            waiting.remove(handle)
            answer = answers[handle.spec.rank] = handle.answer()
            if not isinstance(answer, Done):
                deadline = min(deadline, time.monotonic() + grace_s)
    return answers


def stop_all(handles: Sequence[WorkerHandle], within_s: float) -> None:
    """Ask all workers to end, then kill their groups, and workers that run after `within_s` seconds together."""
    deadline = time.monotonic() + within_s
    for handle in handles:
        handle.send(STOP)
    for handle in handles:
        handle.process.join(timeout=max(0.0, deadline - time.monotonic()))
        handle.kill()
