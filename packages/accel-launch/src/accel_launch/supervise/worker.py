"""Track one process of a job: its end, its memory, the signals to it, and the reason that it has left."""

from __future__ import annotations

import os
import resource  # noqa: F401 (os.wait4 imports it, which fails when too many files are open)
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from signal import Signals

from accel_launch.job.plan import ProcessSpec
from accel_launch.report.job_result import read_failure


@dataclass
class Worker:
    """A process that was started.

    Args:
        spec: How it was started.
        process: The process.
        peak_bytes: Memory that it took, once it has ended.
        noted: True once its end was noted.
    """

    spec: ProcessSpec
    process: subprocess.Popen[bytes]
    peak_bytes: int = 0
    noted: bool = False

    def status(self) -> int | None:
        """Return the exit code, or minus the signal that killed the process, or None while it runs."""
        process = self.process
        if process.returncode is None and sys.platform == "linux":
            with suppress(ChildProcessError):
                pid, status, usage = os.wait4(process.pid, os.WNOHANG)
                if pid:
                    self.peak_bytes = usage.ru_maxrss * 1024
                    process.returncode = os.waitstatus_to_exitcode(status)
        return process.poll()

    def send(self, number: Signals) -> None:
        """Send the process a signal, unless it has ended."""
        if self.status() is None:
            self.process.send_signal(number)
            if number == Signals.SIGTERM:
                self.process.send_signal(Signals.SIGCONT)  # one that is stopped hears of nothing

    def has_said(self, folder: Path) -> bool:
        """Return True if it has left an exception of its own in the folder of the job, and not the loss of a peer."""
        cause = read_failure(folder, self.spec.rank, self.process.pid)
        return cause is not None and not cause.lost_peer and not cause.beside
