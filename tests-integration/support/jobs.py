"""Jobs of several processes that a test starts as a user would, and what is left of them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from accel_testing import stretched

ACCEL = ("-m", "accel", "launch", "--cpu", "--num_processes")
#: seconds within which what ends by itself must have ended: ten times what it takes, as the machine has other work too
SOON_S = stretched(30.0)
#: seconds that the end of a job is waited for
END_S = stretched(100.0)
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node")


def free_port() -> int:
    """A port of the loopback at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(frozen=True)
class Ended:
    """A job that has ended: its code, what it printed, and when, in seconds since the epoch and since its start."""

    code: int
    out: str
    err: str
    at: float
    seconds: float
    mark: str

    def left(self) -> list[int]:
        """The processes of the job that are still there."""
        return marked(self.mark)


@dataclass
class Job:
    """A job that runs; each of its processes, or the stub of a forked one, has `mark` among its arguments."""

    process: subprocess.Popen[bytes]
    out: IO[bytes]
    err: IO[bytes]
    mark: str
    began: float

    def end(self, timeout_s: float = END_S) -> Ended:
        """Waits for its end; kills what this test has started if it does not come."""
        late = ""
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()  # accel's processes die with their launcher
            self.process.wait()
            late = f"\n(did not end in {timeout_s:g} s)"
        now = time.time()
        out, err = map(_text, (self.out, self.err))
        return Ended(self.process.returncode, out, err + late, now, now - self.began, self.mark)


def start(
    script: Path, *arguments: object, size: int = 2, by: Sequence[str] = ACCEL, python: str = sys.executable
) -> Job:
    """Start the script in that many processes, by a launcher that `python` runs: Python, or `forking_python`."""
    mark = f"mark-{uuid.uuid4().hex}"
    command = [python, *by, str(size), str(script), *map(str, arguments), mark]
    return _job(command, {}, mark)


def start_by_hand(script: Path, *arguments: object, size: int = 2, python: str = sys.executable) -> list[Job]:
    """Start the script in that many processes that nobody supervises: what one does, it does by itself."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mark = f"mark-{uuid.uuid4().hex}"
    command = [python, str(script), *map(str, arguments), mark]
    common = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1"}
    common |= {"MASTER_PORT": str(port), "ACCEL_USE_CPU": "1"}
    return [_job(command, {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}, mark) for rank in range(size)]


def _job(command: Sequence[str], environ: Mapping[str, str], mark: str) -> Job:
    whole = {**os.environ, "OMP_NUM_THREADS": "1", **environ}
    # files, not pipes: a process that is left behind holds a pipe open, and the end of the job would be its end
    out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - `end` closes them
    return Job(subprocess.Popen(command, stdout=out, stderr=err, env=whole), out, err, mark, time.time())


def _text(file: IO[bytes]) -> str:
    with file:
        file.seek(0)
        return file.read().decode(errors="replace")


def marked(mark: str) -> list[int]:
    """The processes that have the mark among their arguments and are no zombies."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                if mark.encode() in (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))
            except OSError:
                pass  # it has ended meanwhile
    return found


def line_of(script: Path, marker: str) -> str:
    """`file:line` of the line with the marker in its comment."""
    for number, text in enumerate(script.read_text().splitlines(), 1):
        if marker in [one.strip() for one in text.rpartition("  # ")[2].split(",")]:
            return f"{script}:{number}"
    raise LookupError(f"{script} has no line that is marked {marker!r}")
