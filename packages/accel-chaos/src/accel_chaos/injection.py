"""Raise the faults of a plan in a process, each once."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from accel_chaos.faults import Fault, read_plan

#: a file of the run: no further fault is raised once it is there
NO_MORE = "no-more-faults"
#: seconds that a process waits until the launcher has got the signal of a fault
ACKNOWLEDGED_S = 5.0
_REAL_REPLACE = os.replace


class ChaosFault(RuntimeError):
    """An exception that a fault raises in a script."""


def marker(folder: Path, number: int) -> Path:
    """Return the file that says that a fault was raised."""
    return folder / f"fault-{number}.json"


def acknowledgement(folder: Path, number: int) -> Path:
    """Return the file that says that the launcher was told of a fault."""
    return folder / f"told-{number}"


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
        self._plan = read_plan(folder / "plan.json")
        self.disk_is_full = False

    def reach(self, phase: str, step: int, nth: int) -> None:
        """Raise the next fault of the plan, if it is due.

        Args:
            phase: Phase that the process enters.
            step: Number of steps that the job has made.
            nth: How often the process has entered the phase since that step.
        """
        while self._plan and marker(self._folder, self._plan[0].number).exists():
            self._plan.pop(0)
        if not self._plan:
            return
        fault = self._plan[0]
        due = phase == "start" or step > fault.step or (step == fault.step and nth >= fault.nth)
        # the fault before has not ended this attempt, so it has no other start
        missed = fault.phase == "start" and phase == "forward" and step > fault.step + 1
        there = missed or (due and fault.phase == phase)
        # there may be fewer processes by now
        if fault.rank % self._world != self._rank or not there or (self._folder / NO_MORE).exists():
            return
        if fault.kind == "worker-killed" and not self._workers():
            return
        self._plan.pop(0)
        self._raise(fault, phase, step)

    def refuse_full_disk(self) -> None:
        """Raise what a full disk raises, if a fault has filled it.

        Raises:
            OSError: The disk is full.
        """
        if self.disk_is_full:
            raise OSError(errno.ENOSPC, "No space left on device (accel chaos)")

    def _raise(self, fault: Fault, phase: str, step: int) -> None:
        aside = marker(self._folder, fault.number).with_suffix(f".{os.getpid()}")
        worker = (self._workers() or [None])[0]
        in_worker = worker is not None and (phase == "loader-worker" or fault.kind == "worker-killed")
        victim = worker if worker is not None and in_worker else os.getpid()
        told = {"number": fault.number, "kind": fault.kind, "phase": phase, "rank": self._rank, "step": step}
        about = {"time": time.monotonic(), "attempt": self._attempt, "pid": victim}
        aside.write_text(json.dumps({**told, **about}), encoding="utf-8")
        _REAL_REPLACE(aside, marker(self._folder, fault.number))
        kind = fault.kind
        if kind in ("SIGTERM", "resize"):
            _wait_for(acknowledgement(self._folder, fault.number))
        elif kind in ("SIGKILL", "worker-killed"):
            os.kill(victim, signal.SIGKILL)
        elif kind in ("SIGSTOP", "SIGSTOP-forever"):
            os.kill(victim, signal.SIGSTOP)
        elif kind == "segfault" and victim == os.getpid():
            ctypes.string_at(0)
        elif kind == "segfault":
            os.kill(victim, signal.SIGSEGV)
        elif kind == "out-of-memory" and victim == os.getpid():
            _exhaust_memory()
        elif kind == "out-of-memory":
            os.kill(victim, signal.SIGKILL)  # as the kernel ends the process that has too much
        elif kind == "full-disk":
            self.disk_is_full = True
            self.refuse_full_disk()
        else:
            raise ChaosFault(f"fault {fault.number} of accel chaos: an exception in {phase}, after step {step}")


def _wait_for(path: Path) -> None:
    """Wait until a file is there, for as long as its writer may take."""
    until = time.monotonic() + ACKNOWLEDGED_S
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.01)


def _exhaust_memory() -> NoReturn:
    """Set a limit of memory a little above what the process has, and allocate beyond it."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE") + (16 << 20), hard))
    held = []
    while True:
        held.append(bytearray(8 << 20))
