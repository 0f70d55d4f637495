"""Run `accel chaos`: run a script with faults, and say whether it recovered correctly."""

from __future__ import annotations

import json as json_format
import re
import signal
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from accel_launch.cli.launch_command import LaunchCommand, ResolvedOptions
from accel_launch.cli.launch_option import LaunchOption
from accel_launch.cli.option_types import COUNT, FILE, NUMBER, SWITCH, OptionType
from accel_launch.cli.options import OPTIONS
from accel_launch.script_job import read_script_job
from accel_state.errors import CannotRun

from accel_chaos.faults import KINDS, PHASES, STEP, Occurrence, draw
from accel_chaos.session import ScriptRun, say
from accel_chaos.work_folder import make_work_folder, moved_arguments

FAULTS, BUDGET_S = 10, 600
#: the longest wait of a process for another: at least so long, and so many times the longest step
LEAST_WAIT_S, LONGER_THAN_A_STEP = 20.0, 3.0
HELP = """Runs SCRIPT as accel launch would with these options: once undisturbed, and once with faults, after each of
which it is started again. Says whether it recovered correctly: whether each sample was trained on exactly once and the
final weights are bit-equal, what each fault cost, and otherwise which state differs first and the likely cause. SCRIPT
has to use accel's Accelerator. Both runs work in copies of the working directory, without checkpoints: what the script
writes or removes there is not yours. project_dir, and arguments that name folders for output, lead into the copies;
other paths that lead out of the working directory are as they are."""
_LISTS = ["\n".join(f"  {name:16} {about}" for name, about in table.items()) for table in (KINDS, PHASES)]
EPILOG = f"""\b
kinds of faults (--kinds):
{_LISTS[0]}

\b
phases (--at):
{_LISTS[1]}

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
_PLACE = re.compile(rf"({'|'.join([STEP, *PHASES])})(?::([0-9]{{1,9}}))?", re.ASCII)
_TIME = re.compile(r"([1-9][0-9]{0,6})([smh]?)", re.ASCII)


def _kinds(text: str) -> str | None:
    named = {name.lower(): name for name in KINDS}
    words = text.lower().split(",")
    return ",".join(named[word] for word in words) if named.keys() >= {*words} else None


def _seconds(text: str) -> int | None:
    found = _TIME.fullmatch(text)
    return found and int(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


def _option(flag: str, about: str, type: Any, expected: str = "", read: Any = None) -> LaunchOption:
    return LaunchOption(flag, type=OptionType(type, expected, read) if read else type, key=None, about=about)


OWN = (
    _option("--faults", f"Number of faults. Default: {FAULTS}, or one for each --at.", COUNT),
    _option(
        "--kinds", "Kinds of faults to draw from. Default: all.", "KIND,...", f"kinds of {', '.join(KINDS)}", _kinds
    ),
    _option("--seed", "Seed by which faults are drawn. Default: 0.", NUMBER),
    _option(
        "--at",
        "Where faults happen in turn: a phase, or step for any, and the number of optimizer steps made by then.",
        "PLACE:STEP,...",
        f"places such as step:12 or save:20; they are {STEP}, {', '.join(PHASES)}",
        lambda text: text if all(map(_PLACE.fullmatch, text.split(","))) else None,
    ),
    _option("--only", "Raise only the fault of this number, as in the run that had it.", COUNT),
    _option(
        "--budget", f"Time for both runs. Default: {BUDGET_S}s.", "TIME", "a time such as 90s, 10m or 1h", _seconds
    ),
    _option("--json", "Write the verdict into this file, as JSON.", FILE),
    _option(
        "--share",
        "Files and folders of the working directory that the script only reads: they are linked and not copied.",
        "PATH,...",
        "paths such as data,models",
        str,
    ),
    _option("--in_place", "Run in the working directory itself, and write where the script writes.", SWITCH),
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
    share: str | None,
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
        share: Paths of the working directory to link and not to copy, with commas.
        in_place: Run in the working directory itself.

    Returns:
        The exit code: 0 if the script recovered, 1 if not, 2 if the undisturbed run fails.

    Raises:
        CannotRun: Nothing was started, or no fault can be raised; the message has every reason.
    """
    places = [(place[1], int(place[2]) if place[2] else None) for place in _PLACE.finditer(at or "")]
    count, budget, seed = faults or len(places) or FAULTS, budget or BUDGET_S, seed or 0
    if only is not None and only > count:
        raise CannotRun("accel chaos", [f"--only {only}: there are {count} faults (--faults)"])
    world = read_script_job("accel chaos", options).count
    deadline = time.monotonic() + budget
    shared = None if in_place else share.split(",") if share else []
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="accel-chaos-", ignore_cleanup_errors=True) as name:
        say(f"an undisturbed run and a run with {count} faults; {world} processes, seed {seed}, at most {budget} s")
        undisturbed = _prepare(options, world, Path(name).resolve(), shared=shared)
        undisturbed.finish(deadline)
        from accel_chaos.history import History
        from accel_chaos.verdict import judge, lines_of

        reference = History(undisturbed.folder)
        if undisturbed.codes != [0] or not reference.steps:
            print("\n".join(undisturbed.output.splitlines()[-20:]), file=sys.stderr)
            code = undisturbed.codes[-1]
            why = "takes too long (--budget)" if undisturbed.late else f"fails, with exit code {code}"
            say(f"the undisturbed run already {why if code else 'is without an optimizer step'}: no fault was raised")
            return 2
        say(f"the undisturbed run: {len(reference.steps)} optimizer steps in {undisturbed.seconds:.1f} s")
        occurrences = [
            Occurrence(**place) for rank in reference.ranks for one in rank.values() for place in one.occurrences
        ]
        drawn = draw(count, (kinds or ",".join(KINDS)).split(","), occurrences, seed=seed, world=world, at=places)
        disturbed = _prepare(options, world, Path(name).resolve(), shared=shared, undisturbed=undisturbed.folder)
        disturbed.planned = [fault for fault in drawn if only in (None, fault.number)]
        times = [step[0].time for step in reference.steps]
        longest = max((late - early for early, late in pairwise(times)), default=0.0)
        disturbed.limit_s = max(LEAST_WAIT_S, LONGER_THAN_A_STEP * longest)
        disturbed.finish(deadline, 1.5 * undisturbed.seconds)
        verdict = judge(undisturbed, disturbed)
    print("\n".join(lines_of(verdict)), flush=True)
    if json is not None:
        Path(json).write_text(json_format.dumps(verdict, indent=2) + "\n", encoding="utf-8")
    return 0 if verdict["recovered"] else 1


def _prepare(
    options: ResolvedOptions, world: int, parent: Path, *, shared: list[str] | None, undisturbed: Path | None = None
) -> ScriptRun:
    """Return a run that can begin, in a copy of the working directory, or in place if `shared` is None."""
    folder = parent / ("disturbed" if undisturbed else "undisturbed")
    work, arguments, here = folder / "work", options.arguments, Path.cwd()
    if shared is None:
        folder.mkdir()
    else:
        make_work_folder(here, work, shared)
        arguments = tuple(moved_arguments(arguments, here, work))
    kept = None if shared is None else work
    return ScriptRun(folder, undisturbed or folder, options, arguments, world, LEAST_WAIT_S, kept)


COMMAND = LaunchCommand(
    "chaos",
    run,
    own=OWN,
    options=[option for option in OPTIONS if option.name not in ("no_python", "explain", "dry_run")],
    words="SCRIPT [arguments of the script]",
    help=HELP,
    epilog=EPILOG,
)
