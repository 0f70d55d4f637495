"""Run `accel chaos`: run a script with faults, and say whether it recovered correctly."""

from __future__ import annotations

import json
import re
import signal
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from types import FrameType

import click
from accel_launch.cli.launch_command import LaunchCommand, ResolvedOptions
from accel_launch.cli.launch_option import LaunchOption
from accel_launch.cli.option_types import COUNT, FILE, NUMBER, SWITCH, OptionType
from accel_launch.cli.options import OPTIONS
from accel_launch.script_job import read_script_job
from accel_state.errors import CannotRun

from accel_chaos.faults import KINDS, PHASES, STEP, Fault, Occurrence, draw, write_plan
from accel_chaos.report import lines_of
from accel_chaos.session import Command, Run, Session
from accel_chaos.work_folder import make_work_folder, moved_arguments

FAULTS, BUDGET_S = 10, 600
#: the longest wait of a process for another: at least so long, and so many times the longest step
LEAST_WAIT_S, LONGER_THAN_A_STEP = 20.0, 3.0
HELP = """Runs SCRIPT as accel launch would with these options: once undisturbed, and once with faults, after each of
which it is started again. Says whether it recovered correctly: whether each sample was trained on exactly once and the
final weights are bit-equal, what each fault cost, and otherwise which state differs first and the likely cause. SCRIPT
has to use accel's Accelerator. Relative outputs go into copies of the working directory, and so does the project_dir:
nothing of yours is overwritten."""
_PLACES = "\n".join(f"  {name:16} {about}" for name, about in PHASES.items())
_KINDS = "\n".join(f"  {name:16} {about}" for name, about in KINDS.items())
EPILOG = f"""\b
kinds of faults (--kinds):
{_KINDS}

\b
phases (--at):
{_PLACES}

\b
examples:
  accel chaos train.py                              what accel launch train.py would start, with 10 faults
  accel chaos -n 2 --cpu --faults 3 --kinds SIGKILL,SIGTERM train.py --lr 0.1
  accel chaos --at step:12 train.py                 one fault, after 12 optimizer steps
  accel chaos --at save:20,rename:40 --kinds SIGKILL train.py
  accel chaos --seed 7 --only 3 train.py            the third of the faults of seed 7 again, alone
  accel chaos --json verdict.json train.py

exit codes: 0 if the script recovered from all faults; 1 if not; 2 if the undisturbed run fails or nothing could be
started."""


def _kinds(text: str) -> str | None:
    names = {name.lower(): name for name in KINDS}
    asked = [word.strip().lower() for word in text.split(",")]
    return ",".join(names[word] for word in asked) if all(word in names for word in asked) else None


def _places(text: str) -> str | None:
    return text if all(_PLACE.fullmatch(word) for word in text.split(",")) else None


def _seconds(text: str) -> int | None:
    found = re.fullmatch(r"([1-9][0-9]{0,6})(s|m|h|)", text.strip(), re.ASCII)
    return int(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]] if found else None


_PLACE = re.compile(rf"({'|'.join([STEP, *PHASES])})(?::([0-9]{{1,9}}))?", re.ASCII)
OWN = (
    LaunchOption("--faults", type=COUNT, key=None, about=f"Number of faults. Default: {FAULTS}, or one for each --at."),
    LaunchOption(
        "--kinds",
        type=OptionType("KIND,...", f"kinds of {', '.join(KINDS)}", _kinds),
        key=None,
        about="Kinds of faults to draw from. Default: all.",
    ),
    LaunchOption("--seed", type=NUMBER, key=None, about="Seed by which faults are drawn. Default: 0."),
    LaunchOption(
        "--at",
        type=OptionType(
            "PLACE:STEP,...", f"places such as step:12 or save:20; they are {STEP}, {', '.join(PHASES)}", _places
        ),
        key=None,
        about="Where faults happen in turn: a phase, or step for any, and the number of optimizer steps made by then.",
    ),
    LaunchOption(
        "--only", type=COUNT, key=None, about="Raise only the fault of this number, as in the run that had it."
    ),
    LaunchOption(
        "--budget",
        type=OptionType("TIME", "seconds, or a time such as 90s, 10m or 1h", _seconds),
        key=None,
        about=f"Time for both runs together. Default: {BUDGET_S // 60}m.",
    ),
    LaunchOption("--json", type=FILE, key=None, about="Write the verdict into this file, as JSON."),
    LaunchOption(
        "--in_place",
        type=SWITCH,
        key=None,
        about="Run in the working directory itself, and write where the script writes, checkpoints included.",
    ),
)


def run(
    options: ResolvedOptions,
    faults: int | None,
    kinds: str | None,
    seed: int | None,
    at: str | None,
    only: int | None,
    budget: int | None,
    json: str | None,
    in_place: bool | None,
) -> int:
    """Run `accel chaos`, and print what it finds.

    Args:
        options: The script, its arguments and the options of `accel launch`.
        faults: Number of faults. Default: 10, or as many as there are places.
        kinds: Kinds to draw from. Default: all.
        seed: Seed of the draw. Default: 0.
        at: Places of the faults in turn. Default: any.
        only: Number of the only fault to raise.
        budget: Seconds for both runs. Default: 600.
        json: Path of a file for the verdict.
        in_place: Run in the working directory itself.

    Returns:
        The exit code: 0 if the script recovered, 1 if not, 2 if the undisturbed run fails.

    Raises:
        CannotRun: Nothing was started, or no fault can be raised; the message has every reason.
    """
    places = [_PLACE.fullmatch(word) for word in at.split(",")] if at else []
    asked = [(place[1], int(place[2]) if place[2] else None) for place in places if place is not None]
    count = faults or len(asked) or FAULTS
    if only is not None and only > count:
        raise CannotRun("accel chaos", [f"--only {only}: there are {count} faults (--faults)"])
    job = read_script_job("accel chaos", options)
    before = signal.signal(signal.SIGTERM, _end)
    try:
        with tempfile.TemporaryDirectory(prefix="accel-chaos-", ignore_cleanup_errors=True) as name:
            chaos = Chaos(
                options, job.count, Path(name).resolve(), time.monotonic(), budget or BUDGET_S, bool(in_place)
            )
            chosen = kinds.split(",") if kinds else list(KINDS)
            return chaos.run(count, chosen, seed or 0, asked, only, Path(json) if json else None)
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


class Chaos:
    """Both runs of a script, and the verdict on them.

    Args:
        options: The script, its arguments and the options of `accel launch`.
        processes: Number of processes.
        folder: Folder for all that is written.
        began: When the command began.
        budget_s: Seconds for both runs.
        in_place: Run in the working directory itself.
    """

    def __init__(
        self, options: ResolvedOptions, processes: int, folder: Path, began: float, budget_s: int, in_place: bool
    ) -> None:
        self._options, self._processes, self._folder = options, processes, folder
        self._deadline, self._budget_s, self._in_place = began + budget_s, budget_s, in_place

    def run(
        self,
        count: int,
        kinds: list[str],
        seed: int,
        at: list[tuple[str, int | None]],
        only: int | None,
        path: Path | None,
    ) -> int:
        """Run the script twice, print the verdict, and return the exit code.

        Args:
            count: Number of faults.
            kinds: Kinds to draw from.
            seed: Seed of the draw.
            at: Places of the faults in turn.
            only: Number of the only fault to raise.
            path: File for the verdict.
        """
        noun = "process" if self._processes == 1 else "processes"
        faults = f"fault {only} of {count}" if only else f"{count} fault{'s' if count > 1 else ''}"
        say(
            f"an undisturbed run and a run with {faults}, on {self._processes} {noun}; seed {seed}; at most"
            f" {self._budget_s} s (--budget)"
        )
        undisturbed = self._start("undisturbed", LEAST_WAIT_S).finish()
        from accel_chaos.history import History

        reference = History(undisturbed.folder)
        if undisturbed.codes != [0] or undisturbed.late or not reference.steps:
            return _refused(undisturbed)
        say(f"the undisturbed run: {len(reference.steps)} optimizer steps in {undisturbed.seconds:.1f} s")
        occurrences = [
            Occurrence(**place)
            for rank in reference.ranks
            for attempt in rank.values()
            for place in attempt.occurrences
        ]
        drawn = draw(count, kinds, occurrences, seed=seed, world=self._processes, at=at)
        planned = [fault for fault in drawn if only in (None, fault.number)]
        times = [step.time for _, step in reference.steps]
        longest = max((late - early for early, late in pairwise(times)), default=0.0)
        limit_s = max(LEAST_WAIT_S, LONGER_THAN_A_STEP * longest)
        session = self._start("disturbed", limit_s, planned, undisturbed)
        disturbed = session.finish()
        from accel_chaos.verdict import judge

        verdict = judge(undisturbed, disturbed, planned=len(planned))
        print("\n".join(lines_of(verdict)), flush=True)
        if path is not None:
            path.write_text(json.dumps(verdict.as_json(), indent=2) + "\n", encoding="utf-8")
        return 0 if verdict.recovered else 1

    def _start(
        self, name: str, limit_s: float, planned: list[Fault] | None = None, undisturbed: Run | None = None
    ) -> Session:
        """Return a run that can begin."""
        folder = self._folder / name
        folder.mkdir()
        write_plan(folder / "plan.json", planned or [])
        work, arguments, here = None, self._options.arguments, Path.cwd()
        if not self._in_place:
            work = folder / "work"
            shared = make_work_folder(here, work)
            if shared and undisturbed is None:
                say(f"too large for a copy, so a script that writes there writes to yours: {', '.join(shared)}")
            arguments = tuple(moved_arguments(arguments, here, work))
        command = Command(self._options, arguments, self._processes, self._options.environ, limit_s)
        reserve = 0.0 if undisturbed is None else 1.5 * undisturbed.seconds
        base = None if undisturbed is None else undisturbed.folder
        return Session(command, Run(folder), self._deadline, say, planned or [], base, work, reserve)


def _refused(undisturbed: Run) -> int:
    """Print why there is nothing to compare with, and return the exit code."""
    print("\n".join(undisturbed.output.splitlines()[-20:]), file=sys.stderr, flush=True)
    if undisturbed.late:
        say("the undisturbed run did not end within the time: give more (--budget)")
    elif undisturbed.codes != [0]:
        say(f"the undisturbed run already fails, with exit code {undisturbed.codes[-1]}: no fault was raised")
    else:
        say("the undisturbed run made no optimizer step by a prepared optimizer: no fault was raised")
    return 2


def say(text: str) -> None:
    """Print a line of `accel chaos`."""
    click.echo(f"accel chaos: {text}")
    sys.stdout.flush()


COMMAND = LaunchCommand(
    "chaos",
    run,
    own=OWN,
    options=[option for option in OPTIONS if option.name not in ("no_python", "explain", "dry_run")],
    words="SCRIPT [arguments of the script]",
    help=HELP,
    epilog=EPILOG,
)
