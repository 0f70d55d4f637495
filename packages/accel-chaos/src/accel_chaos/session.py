"""Start a script by `accel launch` until it is done, with faults or without, and tell what happens meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accel_launch.cli.launch_command import ResolvedOptions
from accel_launch.cli.options import BY_NAME
from accel_launch.supervise.process_tree import die_with_parent

from accel_chaos.faults import Fault
from accel_chaos.injection import NO_MORE, acknowledgement, marker

RUNNER = "accel_chaos.runner"
#: restarts of a launcher without a new checkpoint, after which the same command starts again
RESTARTS = 2
#: seconds that a process is stopped for, between two looks at a run, and that a launcher has to end in
STOPPED_S, LOOK_S, ENDING_S = 3.0, 0.05, 10.0
#: options that `accel chaos` sets by itself
OWN = ("config_file", "module", "num_processes", "max_restarts", "log_dir", "tee", "dry_run", "explain")


@dataclass
class Run:
    """A run of the script, from its first start to its last end.

    Args:
        folder: Folder of the run.
        codes: The exit code of each launch.
        raised: The faults that were raised, as their marks tell.
        late: True if the run did not end within its time.
        seconds: How long it took.
        output: What was printed.
    """

    folder: Path
    codes: list[int] = field(default_factory=list)
    raised: list[dict[str, Any]] = field(default_factory=list)
    late: bool = False
    seconds: float = 0.0

    @property
    def output(self) -> str:
        """All that the launcher and the script have printed."""
        return (self.folder / "output.txt").read_text(encoding="utf-8", errors="replace")


@dataclass(frozen=True, slots=True)
class Command:
    """The command that starts the script.

    Args:
        options: The options of the launch.
        arguments: The arguments of the script.
        processes: Number of processes.
        environ: The environment.
        limit_s: Longest wait of a process for another, in seconds.
    """

    options: ResolvedOptions
    arguments: tuple[str, ...]
    processes: int
    environ: Mapping[str, str]
    limit_s: float

    def words(
        self, folder: Path, undisturbed: Path | None, work: Path | None, launch: int, processes: int
    ) -> list[str]:
        """Return the words of the command.

        Args:
            folder: Folder of the run.
            undisturbed: Folder of the undisturbed run; None in that run.
            work: Working folder of the run, or None for that of the user.
            launch: Number of earlier launches.
            processes: Number of processes.
        """
        settings = self.options.settings
        said = [name for name in BY_NAME if settings.said(name) and name not in OWN]
        flags = [word for name in said for word in BY_NAME[name].words(getattr(settings, name))]
        restarts = settings.max_restarts or (RESTARTS if undisturbed is not None else 0)
        flags += ["--num_processes", str(processes), "--max_restarts", str(restarts)]
        kind, script = "module", self.options.script or ""
        if not settings.module:
            kind, script = "script", str(Path(script).absolute())
        own = [str(folder), str(undisturbed or ""), str(launch), f"{self.limit_s:.0f}", str(work or ""), kind, script]
        launched = [sys.executable, "-m", "accel_launch", "launch", "--config_file", os.devnull, *flags]
        return [*launched, "-m", RUNNER, *own, *self.arguments]


@dataclass
class Session:
    """A run in progress.

    Args:
        command: The command that starts the script.
        run: What is known of the run.
        deadline: When it has to be over.
        say: Prints a line.
        planned: The faults that are planned.
        undisturbed: Folder of the undisturbed run, or None in that run.
        work: Working folder, or None for that of the user.
        reserve_s: Seconds before the deadline in which no further fault is raised.
    """

    command: Command
    run: Run
    deadline: float
    say: Callable[[str], None]
    planned: list[Fault] = field(default_factory=list)
    undisturbed: Path | None = None
    work: Path | None = None
    reserve_s: float = 0.0

    def finish(self) -> Run:
        """Start the script again and again, until it has ended well, has failed without a fault, or is late."""
        began, processes, run = time.monotonic(), self.command.processes, self.run
        while True:
            before = len(run.raised)
            code = self._launch(len(run.codes), processes)
            run.codes.append(code)
            fired = run.raised[before:]
            if code != 0 and any(fault["kind"] == "resize" for fault in fired):
                processes = _other_count(processes, self.command.processes)
                self.say(f"the same command starts again, with --num_processes {processes}")
            # a failure without a fault in this launch comes again; so does a stop that nobody has asked for
            if code == 0 or run.late or not (fired and self.planned):
                run.seconds = time.monotonic() - began
                return run

    def _launch(self, number: int, processes: int) -> int:
        """Start the script once by a launcher of its own, and wait for its end."""
        words = self.command.words(self.run.folder, self.undisturbed, self.work, number, processes)
        parent = os.getpid()
        with (self.run.folder / "output.txt").open("ab") as output:
            launcher = subprocess.Popen(
                words,
                cwd=self.work,
                env=dict(self.command.environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=lambda: die_with_parent(parent),
            )
            try:
                while launcher.poll() is None:
                    self._look(launcher)
                    if time.monotonic() > self.deadline:
                        self.run.late = True
                        return 1
                    time.sleep(LOOK_S)
                self._look(launcher)
                return launcher.returncode
            finally:
                _end(launcher)

    def _look(self, launcher: subprocess.Popen[bytes]) -> None:
        """Tell of new faults, and the launcher of its own; let stopped processes go on; raise none too late."""
        told = {fault["number"] for fault in self.run.raised}
        for fault in self.planned:
            if fault.number not in told and (path := marker(self.run.folder, fault.number)).exists():
                raised = json.loads(path.read_text(encoding="utf-8"))
                self.run.raised.append(raised)
                if raised["kind"] in ("SIGTERM", "resize"):
                    launcher.terminate()
                    acknowledgement(self.run.folder, fault.number).touch()
                self.say(
                    f"fault {raised['number']} of {self.planned[-1].number}: {raised['kind']} on rank"
                    f" {raised['rank']} in {raised['phase']}, after step {raised['step']}"
                )
        now = time.monotonic()
        for raised in self.run.raised:
            if raised["kind"] == "SIGSTOP" and now > raised["time"] + STOPPED_S and not raised.get("continued"):
                raised["continued"] = True
                with suppress(ProcessLookupError):
                    os.kill(raised["pid"], signal.SIGCONT)
        if self.planned and now > self.deadline - self.reserve_s:
            (self.run.folder / NO_MORE).touch()


def _end(launcher: subprocess.Popen[bytes]) -> None:
    """End a launcher and all that it has started."""
    if launcher.poll() is not None:
        return
    launcher.terminate()
    try:
        launcher.wait(ENDING_S)
    except subprocess.TimeoutExpired:
        launcher.kill()
        launcher.wait()


def _other_count(now: int, asked: int) -> int:
    """Return another number of processes: half as many, or those that were asked for; two for one."""
    return asked if now != asked else max(1, asked // 2) if asked > 1 else 2
