"""Raise the faults of a plan in the processes of a run, each once."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from accel_chaos.faults import SIGNALS, STEP, Fault

#: files of a run: what its processes have to know, the process id of the launcher, and a line for each fault
PLAN, LAUNCHER, RAISED = "plan.json", "launcher", "raised.jsonl"
#: a limit of memory that each process is above, in bytes
LEFT = 67_108_864


class ChaosFault(RuntimeError):
    """An exception that a fault raises in a script."""


def worker_pids() -> list[int]:
    """Return the process ids of the loader workers of this process."""
    return [child.pid or 0 for child in multiprocessing.active_children()]


@dataclass
class Injector:
    """The faults that a process has to raise. They are raised in the order of the plan, over all processes.

    Args:
        folder: Folder of the run.
        attempt: Name of this attempt.
        rank: Rank of this process.
        world: Number of processes.
        plan: The faults of the run.
        until: When no further fault is raised.

    Units:
        Seconds of the monotonic clock, which all processes of a machine share.
    """

    folder: Path
    attempt: str
    rank: int
    world: int
    plan: Sequence[Fault]
    until: float

    def reach(self, phase: str, step: int, nth: int) -> None:
        """Raise the next fault of the plan, if it is due.

        Args:
            phase: Phase that the process enters.
            step: Number of steps that the job has made.
            nth: How often the process has entered the phase since that step.
        """
        due = (self.folder / RAISED).read_bytes().count(b"\n")
        if due == len(self.plan) or time.monotonic() > self.until:
            return
        fault = self.plan[due]
        if fault.phase == "start":
            # the fault before may not have ended this attempt, so that it has no other start
            there = phase == "start" or (phase == "forward" and step > fault.step + 1)
        else:
            there = fault.phase == phase and (step, nth) >= (fault.step, fault.nth)
        # there may be fewer processes by now
        if there and fault.rank % self.world == self.rank:
            self._raise(fault, phase, step)

    def _raise(self, fault: Fault, phase: str, step: int) -> None:
        # nobody waits for a process that is alone by now
        kind = "SIGSTOP" if fault.kind == "SIGSTOP-forever" and self.world == 1 else fault.kind
        number = SIGNALS.get(kind)
        victims = worker_pids()[:1] if phase == "loader-worker" else [os.getpid()]
        if number == signal.SIGTERM:
            # at the end of a step all processes are to stop after this step
            victims = [int((self.folder / LAUNCHER).read_text()), *(victims if phase == STEP else [])]
        told = {
            **asdict(fault),
            "kind": kind,
            "phase": phase,
            "rank": self.rank,
            "step": step,
            "attempt": self.attempt,
            "time": time.monotonic(),
            "noted": number == signal.SIGTERM and callable(signal.getsignal(signal.SIGTERM)),
        }
        with (self.folder / RAISED).open("a") as file:
            print(json.dumps(told), file=file)
        if kind == "SIGSTOP":
            subprocess.Popen(["sh", "-c", f"sleep 3; kill -s CONT {victims[0]}"])
        if number:
            for victim in victims:
                os.kill(victim, number)
        elif kind == "out-of-memory":
            resource.setrlimit(resource.RLIMIT_AS, (LEFT, LEFT))
            bytearray(LEFT)
        elif kind == "full-disk":
            raise OSError(errno.ENOSPC, "no space left on device, as accel chaos pretends")
        else:
            raise ChaosFault("accel chaos raises an exception here")
