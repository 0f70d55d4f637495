"""One worker, seen from the test."""

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
from accel_testing.place import Place
from accel_testing.worker import serve

NAME = "accel-testing-rank-"
STACKS_WITHIN_S = 1.0


@final
class Died:
    """What is known of a worker that ended without an answer."""

    def __init__(self, exit_code: int | None) -> None:
        self.how = f"exit code {exit_code}"
        if exit_code is not None and exit_code < 0:
            self.how = f"signal {signal.Signals(-exit_code).name}"


@final
class Member:
    """A worker process that was started for one rank and is never given to another world."""

    def __init__(self, place: Place, context: ForkServerContext) -> None:
        self.place = place
        self.pipe, theirs = context.Pipe()
        # not a daemon: a DataLoader in the worker must be allowed to have children
        self.process = context.Process(target=serve, args=(place, theirs), name=f"{NAME}{place.rank}", daemon=False)
        self.process.start()
        theirs.close()
        self._pid = self.process.pid

    def send(self, message: bytes) -> None:
        """Hands over a message; one that has died is found out by `answer`."""
        with suppress(OSError):
            self.pipe.send_bytes(message)

    def answer(self) -> Done | Failed | Died:
        """The worker's answer, waited for until it has come whole or the worker has died."""
        try:
            if self.pipe.poll():
                answer: Done | Failed = pickle.loads(self.pipe.recv_bytes())
                return answer
        except (EOFError, OSError):
            pass
        self.process.join(timeout=1)
        return Died(self.process.exitcode)

    def output(self) -> str:
        """What the worker has printed so far."""
        return self.place.output.read_text("utf-8", errors="replace") if self.place.output.exists() else ""

    def kill(self) -> None:
        """Kills the worker and every process that it started."""
        if self._pid is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)
        self.process.kill()
        self.process.join()

    def close(self) -> None:
        """Frees what the parent holds for a worker that has ended."""
        self.pipe.close()
        self.process.close()


def stacks(members: Sequence[Member]) -> dict[int, str]:
    """Python stacks of running workers, by rank; a worker that shows none within a second gets a line that says it."""
    for member in members:
        if member.process.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(member.process.pid, signal.SIGUSR1)
    found = {member.place.rank: "" for member in members}
    deadline = time.monotonic() + STACKS_WITHIN_S
    while time.monotonic() < deadline:
        time.sleep(0.05)
        now = {m.place.rank: m.place.stacks.read_text() if m.place.stacks.exists() else "" for m in members}
        # written by a signal handler, line by line: whole when it has stopped growing
        if now == found and all(now.values()):
            break
        found = now
    return {rank: text or "(no stack came back: SIGUSR1 is blocked or taken)\n" for rank, text in found.items()}


def collect(members: Sequence[Member], *, timeout_s: float, grace_s: float) -> dict[int, Done | Failed | Died]:
    """Answers by rank; a rank is missing when it was late, or had `grace_s` seconds after the first failure."""
    deadline = time.monotonic() + timeout_s
    waiting = list(members)
    answers: dict[int, Done | Failed | Died] = {}
    while waiting:
        handles = [handle for member in waiting for handle in (member.pipe, member.process.sentinel)]
        ready = wait(handles, timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        for member in [m for m in waiting if m.pipe in ready or m.process.sentinel in ready]:
            waiting.remove(member)
            answer = answers[member.place.rank] = member.answer()
            if not isinstance(answer, Done):
                deadline = min(deadline, time.monotonic() + grace_s)
    return answers


def stop_all(members: Sequence[Member], within_s: float) -> None:
    """Asks all workers to end, and after `within_s` seconds together kills them and what they have left behind."""
    deadline = time.monotonic() + within_s
    for member in members:
        member.send(STOP)
    for member in members:
        member.process.join(timeout=max(0.0, deadline - time.monotonic()))
        member.kill()
