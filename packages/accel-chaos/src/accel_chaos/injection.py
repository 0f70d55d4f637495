"""Raise the faults of a plan in a process, each once."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path

from accel_chaos.faults import PREEMPTIONS, Fault

#: files of a run: its faults, and one that stops further faults
PLAN, NO_MORE = "plan.json", "no-more-faults"
#: seconds that a process waits until the launcher has got the signal of a fault
ACKNOWLEDGED_S = 5.0
_SIGNALS = {
    "SIGKILL": signal.SIGKILL,
    "worker-killed": signal.SIGKILL,
    "SIGSTOP": signal.SIGSTOP,
    "SIGSTOP-forever": signal.SIGSTOP,
    "segfault": signal.SIGSEGV,
}
_replace = os.replace


class ChaosFault(RuntimeError):
    """An exception that a fault raises in a script."""


def mark(folder: Path, number: int, what: str = "fault") -> Path:
    """Return the file that says that a fault was raised, or that the launcher was told of it.

    Args:
        folder: Folder of the run.
        number: Number of the fault.
        what: "fault" or "told".
    """
    return folder / f"{what}-{number}.json"


class Injector:
    """The faults that a process has to raise. They are raised in the order of the plan, over all processes.

    Args:
        folder: Folder of the run, with its plan and the marks of faults that were raised.
        attempt: Name of this attempt.
        rank: Rank of this process.
        world: Number of processes.
        workers: Returns the process ids of loader workers.
    """

    def __init__(self, folder: Path, attempt: str, rank: int, world: int, workers: Callable[[], list[int]]) -> None:
        self._folder, self._attempt, self._workers = folder, attempt, workers
        self._rank, self._world = rank, world
        self._plan = [Fault(**fault) for fault in json.loads((folder / PLAN).read_text())]

    def reach(self, phase: str, step: int, nth: int) -> None:
        """Raise the next fault of the plan, if it is due.

        Args:
            phase: Phase that the process enters.
            step: Number of steps that the job has made.
            nth: How often the process has entered the phase since that step.
        """
        while self._plan and mark(self._folder, self._plan[0].number).exists():
            self._plan.pop(0)
        if not self._plan:
            return
        fault = self._plan[0]
        # the fault before may not have ended this attempt, so that it has no other start
        missed = fault.phase == "start" and phase == "forward" and step > fault.step + 1
        due = missed or (fault.phase == phase and (phase == "start" or (step, nth) >= (fault.step, fault.nth)))
        able = fault.kind != "worker-killed" or self._workers()
        # there may be fewer processes by now
        if due and able and fault.rank % self._world == self._rank and not (self._folder / NO_MORE).exists():
            self._raise(fault, phase, step)

    def _raise(self, fault: Fault, phase: str, step: int) -> None:
        path = mark(self._folder, fault.number)
        # nobody waits for a process that is alone by now
        kind = "SIGSTOP" if fault.kind == "SIGSTOP-forever" and self._world == 1 else fault.kind
        in_worker = phase == "loader-worker" or kind == "worker-killed"
        victim = self._workers()[0] if in_worker else os.getpid()
        told = {"number": fault.number, "kind": kind, "phase": phase, "rank": self._rank, "step": step}
        told |= {"time": time.monotonic(), "attempt": self._attempt, "pid": victim}
        path.with_suffix(".new").write_text(json.dumps(told))
        _replace(path.with_suffix(".new"), path)
        if kind in _SIGNALS:
            os.kill(victim, _SIGNALS[kind])
        elif kind in PREEMPTIONS:
            until = time.monotonic() + ACKNOWLEDGED_S
            while not mark(self._folder, fault.number, "told").exists() and time.monotonic() < until:
                time.sleep(0.01)
        elif kind == "out-of-memory":
            _exhaust_memory()
        elif kind == "full-disk":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        else:
            raise ChaosFault(f"fault {fault.number} of accel chaos: an exception in {phase}, after step {step}")


def _exhaust_memory() -> None:
    """Set a limit of memory a little above what the process has, and allocate beyond it."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (16 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
    held = []
    while True:
        held.append(bytearray(8 << 20))
