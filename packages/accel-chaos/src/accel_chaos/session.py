"""Start a script by `accel launch` until it is done, with faults or without, and tell what happens meanwhile."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from accel_launch.cli.commands import launch
from accel_launch.cli.launch_command import ResolvedOptions
from accel_launch.supervise.process_tree import die_with_parent

from accel_chaos.faults import Fault
from accel_chaos.history import History
from accel_chaos.injection import LAUNCHER, PLAN, RAISED
from accel_chaos.work_folder import make_work_folder, moved_arguments

#: restarts of a launcher without a new checkpoint, after which the same command starts again
RESTARTS = 2
#: lines of the output that are shown
LAST_LINES = 20
#: seconds between two looks at a run, and that a launcher has to end in
LOOK_S = 0.05
ENDING_S = 10.0


@dataclass
class ScriptRun:
    """A run of the script in a copy of the working directory, from its first start to its last end.

    Args:
        folder: Folder to make for the run.
        options: The options of the launch.
        processes: Number of processes.
        share: Names in the working directory that are linked and not copied, with commas.
        deadline: When it has to be over.
        until: When no further fault is raised.
        planned: The faults to raise.
        codes: The exit code of each launch.
        raised: The faults that were raised.
        late: True if the run did not end in time.
        seconds: How long it took.

    Units:
        Seconds of the monotonic clock.
    """

    folder: Path
    options: ResolvedOptions
    processes: int
    share: str | None
    deadline: float
    until: float = 0.0
    planned: Sequence[Fault] = ()
    codes: list[int | None] = field(default_factory=list)
    raised: list[dict[str, Any]] = field(default_factory=list)
    late: bool = False
    seconds: float = 0.0

    @property
    def printed(self) -> list[str]:
        """The last lines that the launcher and the script have printed."""
        return (self.folder / "output.txt").read_text(errors="replace").splitlines()[-LAST_LINES:]

    @cached_property
    def history(self) -> History:
        """The steps that it has made, once it is over."""
        return History(self.folder)

    def finish(self) -> ScriptRun:
        """Start the script again and again, until it has ended well, has failed without a fault, or is late."""
        began, here, work, settings = time.monotonic(), Path.cwd(), self.folder / "work", self.options.settings
        make_work_folder(here, work, self.share.split(",") if self.share else [])
        (self.folder / RAISED).touch()
        script = str(self.options.script)
        plan = [
            [asdict(fault) for fault in self.planned],
            self.until,
            script if settings.module else os.path.abspath(script),
            moved_arguments(self.options.arguments, here, work),
            settings.module,
        ]
        (self.folder / PLAN).write_text(json.dumps(plan))
        processes = self.processes
        while not self.late:
            before = len(self.raised)
            self._launch(
                module=True,
                log_dir=None,
                num_processes=processes,
                max_restarts=(settings.max_restarts or RESTARTS) if self.planned else 0,
            )
            kinds = [fault["kind"] for fault in self.raised[before:]]
            # a failure without a fault in this launch comes again; so does a stop that nobody has asked for
            if self.codes[-1] == 0 or not kinds:
                break
            if "resize" in kinds:
                processes = self.processes if processes != self.processes else processes // 2 or 2
        self.seconds = time.monotonic() - began
        return self

    def _launch(self, **changed: Any) -> None:
        """Start the script once by a launcher of its own, and wait for its end."""
        options = replace(
            self.options,
            settings=self.options.settings.with_flags(**changed),
            script="accel_chaos.runner",
            arguments=(str(self.folder), str(len(self.codes))),
        )
        launcher = get_context("fork").Process(target=self._become_launcher, args=(options, os.getpid()))
        launcher.start()
        (self.folder / LAUNCHER).write_text(str(launcher.pid))
        try:
            while launcher.exitcode is None and not self.late:
                launcher.join(LOOK_S)
                for text in (self.folder / RAISED).read_text().split("\n")[len(self.raised) : -1]:
                    fault = json.loads(text)
                    self.raised.append(fault)
                    # a resize of the run without faults has no number
                    if fault["number"]:
                        say("fault {number}: {kind} on rank {rank} in {phase}, after step {step}".format(**fault))
                self.late = time.monotonic() > self.deadline
        finally:
            # the second time it waits for no process; killed, it would leave its checkpoints in memory for a day
            for end in (launcher.terminate, launcher.terminate, launcher.kill):
                end()
                launcher.join(ENDING_S)
        self.codes.append(launcher.exitcode)

    def _become_launcher(self, options: ResolvedOptions, parent: int) -> None:
        die_with_parent(parent)
        os.setsid()
        os.chdir(self.folder / "work")
        with (self.folder / "output.txt").open("ab") as output:
            for number in (1, 2):
                os.dup2(output.fileno(), number)
        sys.exit(launch.run(options, stays=True))


def say(text: str) -> None:
    """Print a line of `accel chaos`."""
    print(f"accel chaos: {text}", flush=True)
