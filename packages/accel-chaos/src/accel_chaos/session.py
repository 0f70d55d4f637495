"""Start a script by `accel launch` until it is done, with faults or without, and tell what happens meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from accel_launch.cli.launch_command import ResolvedOptions
from accel_launch.cli.options import BY_NAME
from accel_launch.supervise.process_tree import die_with_parent

from accel_chaos.faults import PREEMPTIONS, Fault
from accel_chaos.injection import NO_MORE, PLAN, mark

#: restarts of a launcher without a new checkpoint, after which the same command starts again
RESTARTS = 2
#: seconds that a process is stopped for, between two looks at a run, and that a launcher has to end in
STOPPED_S, LOOK_S, ENDING_S = 3.0, 0.05, 10.0
#: options that `accel chaos` sets by itself
OWN = ("config_file", "module", "num_processes", "max_restarts", "log_dir", "tee")


@dataclass
class ScriptRun:
    """A run of the script, from its first start to its last end.

    Args:
        folder: Folder of the run.
        undisturbed: Folder of the undisturbed run, which may be the same.
        options: The options of the launch.
        arguments: The arguments of the script.
        processes: Number of processes.
        limit_s: Longest wait of a process for another.
        work: Working folder, or None for that of the user.
        planned: The faults to raise.
        codes: The exit code of each launch.
        raised: The faults that were raised, as their marks tell.
        late: True if the run did not end in time.
        seconds: How long it took.
    """

    folder: Path
    undisturbed: Path
    options: ResolvedOptions
    arguments: Sequence[str]
    processes: int
    limit_s: float
    work: Path | None = None
    planned: Sequence[Fault] = ()
    codes: list[int] = field(default_factory=list)
    raised: list[dict[str, Any]] = field(default_factory=list)
    late: bool = False
    seconds: float = 0.0

    @property
    def output(self) -> str:
        """The text that the launcher and the script have printed."""
        return (self.folder / "output.txt").read_text(encoding="utf-8", errors="replace")

    def finish(self, deadline: float, reserve_s: float = 0.0) -> None:
        """Start the script again and again, until it has ended well, has failed without a fault, or is late.

        Args:
            deadline: When it has to be over.
            reserve_s: Seconds before that in which no further fault is raised.
        """
        began, processes = time.monotonic(), self.processes
        (self.folder / PLAN).write_text(json.dumps([asdict(fault) for fault in self.planned]))
        while not self.late:
            before = len(self.raised)
            self.codes.append(self._launch(processes, deadline, reserve_s))
            fired = self.raised[before:]
            # a failure without a fault in this launch comes again; so does a stop that nobody has asked for
            if self.codes[-1] == 0 or not fired:
                break
            if any(fault["kind"] == "resize" for fault in fired):
                asked = self.processes
                processes = asked if processes != asked else asked // 2 or 2
                say(f"the same command starts again, with --num_processes {processes}")
        self.seconds = time.monotonic() - began

    def _words(self, processes: int) -> list[str]:
        settings, script = self.options.settings, self.options.script or ""
        said = [name for name in BY_NAME if settings.said(name) and name not in OWN]
        restarts = settings.max_restarts or (RESTARTS if self.planned else 0)
        kind, script = ("module", script) if settings.module else ("script", os.path.abspath(script))
        own = [self.folder, self.undisturbed, len(self.codes), self.limit_s, self.work or "", kind, script]
        return [
            *(sys.executable, "-m", "accel_launch", "launch", "--config_file", os.devnull),
            *(word for name in said for word in BY_NAME[name].words(getattr(settings, name))),
            *("--num_processes", str(processes), "--max_restarts", str(restarts), "-m", "accel_chaos.runner"),
            *map(str, own),
            *self.arguments,
        ]

    def _launch(self, processes: int, deadline: float, reserve_s: float) -> int:
        """Start the script once by a launcher of its own, wait for its end, and return the exit code."""
        parent = os.getpid()
        with (self.folder / "output.txt").open("ab") as output:
            launcher = subprocess.Popen(
                self._words(processes),
                cwd=self.work,
                env=dict(self.options.environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=lambda: die_with_parent(parent),
            )
        try:
            while (code := launcher.poll()) is None and not self.late:
                time.sleep(LOOK_S)
                self._look(launcher)
                if time.monotonic() > deadline - reserve_s:
                    (self.folder / NO_MORE).touch()
                self.late = time.monotonic() > deadline
            return 1 if code is None else code
        finally:
            launcher.terminate()
            try:
                launcher.wait(ENDING_S)
            except subprocess.TimeoutExpired:
                launcher.kill()
                launcher.wait()

    def _look(self, launcher: subprocess.Popen[bytes]) -> None:
        """Tell of new faults, and the launcher of its own, and let stopped processes go on."""
        told = {fault["number"] for fault in self.raised}
        for number in [fault.number for fault in self.planned if fault.number not in told]:
            if not (path := mark(self.folder, number)).exists():
                continue
            fault = json.loads(path.read_text())
            self.raised.append(fault)
            if fault["kind"] in PREEMPTIONS:
                launcher.terminate()
                mark(self.folder, number, "told").touch()
            say("fault {number}: {kind} on rank {rank} in {phase}, after step {step}".format(**fault))
        for fault in self.raised:
            if fault["kind"] == "SIGSTOP" and time.monotonic() > fault["time"] + STOPPED_S and "goes_on" not in fault:
                fault["goes_on"] = True
                with suppress(ProcessLookupError):
                    os.kill(fault["pid"], signal.SIGCONT)


def say(text: str) -> None:
    """Print a line of `accel chaos`."""
    print(f"accel chaos: {text}", flush=True)
