"""Machines for tests: network namespaces of this one that are joined by a cable, each with a host name of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from accel_testing import stretched
from forked_programs.forking_python import ForkingPython
from jobs import END_S, Ended, Job

LAUNCH = ("-m", "accel", "launch", "--cpu")
#: what a machine does before a command: the names that it knows, and its own
_ENTER = 'mount --bind "$0" /etc/hosts && hostname "$1" && shift && exec "$@"'


@dataclass(frozen=True)
class Node:
    """One machine: its namespace, its host name, its address, and the file of the names that it knows."""

    space: str
    host: str
    address: str
    names: Path

    def command(self, *words: str) -> list[str]:
        """The command that runs these words on this machine; the process becomes theirs."""
        enter = ("unshare", "--uts", "sh", "-c", _ENTER, str(self.names), self.host)
        return ["ip", "netns", "exec", self.space, *enter, *words]


@dataclass
class Machines:
    """Two machines, and the launchers that a test has started on them; `pythons` fork programs, each on its machine."""

    nodes: tuple[Node, Node]
    folder: Path
    pythons: Sequence[ForkingPython] = ()
    jobs: list[Job] = field(default_factory=list)

    def script(self, code: str) -> str:
        """Writes a script that both machines see, and returns its name."""
        (self.folder / "plain.py").write_text(code)
        return "plain.py"

    def start(
        self, number: int, *words: object, environ: Mapping[str, str] | None = None, by: Sequence[str] = LAUNCH
    ) -> Job:
        """Starts `accel launch --cpu` with these words on a machine."""
        node = self.nodes[number]
        whole = {**os.environ, "OMP_NUM_THREADS": "1", **(environ or {})}
        # files, not pipes, for the reason that `jobs` has
        out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - `Job.end` closes them
        process = subprocess.Popen(
            self._command(number, *by, *map(str, words)),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=whole,
            cwd=self.folder,
        )
        self.jobs.append(Job(process, out, err, node.space, time.time()))
        return self.jobs[-1]

    def _command(self, number: int, *words: str) -> list[str]:
        """The command of a Python on a machine, forked if there is a server for that."""
        if not self.pythons:
            return self.nodes[number].command(sys.executable, *words)
        python = self.pythons[number]
        enter = ["nsenter", "--target", str(python.server), "--net", "--mount", "--uts", f"--wd={self.folder}"]
        return [*enter, python.executable, *words]

    def place(self, number: int) -> tuple[object, ...]:
        """The flags that give a machine its place."""
        where = ("--main_process_ip", self.nodes[0].address, "--join_timeout", 60)
        return ("--num_machines", 2, "--machine_rank", number, *where)

    def start_both(self, *words: object) -> tuple[Job, Job]:
        """Starts the launchers of both machines, the second one first."""
        one = self.start(1, *self.place(1), *words)
        return self.start(0, *self.place(0), *words), one

    def processes(self, number: int) -> list[int]:
        """All processes that run on a machine, but for those that fork programs."""
        listed = map(int, _ip("netns", "pids", self.nodes[number].space).split())
        if not self.pythons:
            return list(listed)
        server = self.pythons[number].server
        return [pid for pid in listed if pid != server and _parent(pid) not in (server, None)]

    def run(self, number: int, code: str) -> subprocess.Popen[str]:
        """Runs Python code on a machine; it has begun when it has said a line."""
        words = self.nodes[number].command(sys.executable, "-c", code)
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline()
        return process

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 60) -> None:
        """Returns when something is so; fails if a launcher that runs ends before."""
        known = [job for job in self.jobs if job.process.poll() is None]
        until = time.monotonic() + stretched(timeout_s)
        while not condition():
            ended = [job.end().err for job in known if job.process.poll() is not None]
            assert not ended, ended
            assert time.monotonic() < until, [job.end(0).err for job in self.jobs]
            time.sleep(0.02)

    def end(self) -> None:
        """Ends all that still runs on the machines."""
        for job in self.jobs:
            with suppress(ProcessLookupError):
                job.process.kill()
            job.process.wait()
            job.out.close()
            job.err.close()
        for number in (0, 1):
            for pid in self.processes(number):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def ends(jobs: Sequence[Job], timeout_s: float = END_S) -> tuple[Ended, Ended]:
    """How the launchers of machine 0 and 1 end."""
    zero, one = (job.end(timeout_s) for job in jobs)
    return zero, one


def missing() -> str | None:
    """Why this system has no network namespaces for a test; None if it has."""
    if sys.platform != "linux":
        return "network namespaces are of Linux"
    absent = [tool for tool in ("ip", "unshare", "nsenter", "mount", "hostname") if shutil.which(tool) is None]
    if absent:
        return f"needs {', '.join(absent)} (iproute2, util-linux)"
    name = f"accel-try-{uuid.uuid4().hex[:8]}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"ip netns add: {tried.stderr.strip()}"
    entered = subprocess.run(
        ["ip", "netns", "exec", name, "unshare", "--uts", "hostname", "other"],
        capture_output=True,
        text=True,
        check=False,
    )
    subprocess.run(["ip", "netns", "del", name], check=True)
    return f"ip netns exec: {entered.stderr.strip()}" if entered.returncode else None


@contextmanager
def two_nodes(folder: Path) -> Iterator[tuple[Node, Node]]:
    """Two machines with a cable between them, while it lasts; skips the test where there can be none."""
    why = missing()
    if why is not None:
        pytest.skip(why)
    key = f"{os.getpid():x}{uuid.uuid4().hex[:4]}"
    names = folder / "hosts"
    spaces = [f"accel-{key}-{letter}" for letter in "ab"]
    nodes = [Node(space, f"node{at + 1}", f"10.77.0.{at + 1}", names) for at, space in enumerate(spaces)]
    names.write_text("127.0.0.1 localhost\n" + "".join(f"{node.address} {node.host}\n" for node in nodes))
    made: list[str] = []
    try:
        for space in spaces:
            _ip("netns", "add", space)
            made.append(space)
        # both ends are made in their machines: no name of this system's own interfaces can be in the way
        _ip("-n", spaces[0], "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", spaces[1])
        for node in nodes:
            _ip("-n", node.space, "link", "set", "lo", "up")
            _ip("-n", node.space, "addr", "add", f"{node.address}/24", "dev", "cable")
            _ip("-n", node.space, "link", "set", "cable", "up")
        yield nodes[0], nodes[1]
    finally:
        for space in made:
            _ip("netns", "del", space)


def _parent(pid: int) -> int | None:
    """The parent of a process; None if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout
