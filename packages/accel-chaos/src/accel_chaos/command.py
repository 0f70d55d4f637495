"""Run `accel chaos`: run a script with faults, and say whether it recovered correctly."""

from __future__ import annotations

import json as json_format
import re
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from accel_launch.cli.launch_command import LaunchCommand, ResolvedOptions
from accel_launch.cli.launch_option import LaunchOption
from accel_launch.cli.option_types import COUNT, FILE, NUMBER, OptionType
from accel_launch.cli.options import OPTIONS
from accel_launch.script_job import read_script_job
from accel_state.errors import CannotRun

from accel_chaos.faults import KINDS, PHASES, STEP, Fault, draw
from accel_chaos.history import UNDISTURBED
from accel_chaos.session import ScriptRun, say

FAULTS = 10
BUDGET = 10
#: the time without faults at the end, in undisturbed runs
RESERVED = 3.0
HELP = """Runs SCRIPT as accel launch would with these options: once undisturbed, and once with faults, after each of
which it is started again. Says whether it recovered correctly: whether each sample was trained on once an epoch, and
whether the final weights are those of the undisturbed run (bit for bit, and but for rounding with three processes or
more); what each fault cost; and otherwise which state differs first, and the likely cause. After a resize both are
compared with a third run, which is resized after the same steps and has no faults. SCRIPT has to use accel's
Accelerator, and to resume. All runs work in copies of the working directory, without checkpoints: what the script
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
  accel chaos --at save:20 --kinds SIGKILL train.py
  accel chaos --seed 7 --only 3 train.py            the third of the faults of seed 7 again, alone
  accel chaos --json verdict.json train.py

exit codes: 0 if the script recovered from all faults; 1 if not; 2 if the undisturbed run fails or nothing could be
started."""
_PLACE = re.compile(rf"({'|'.join([STEP, *PHASES])})(:[0-9]{{1,9}})?")


#: options of this command alone: their flags, their types and their help
OWN: tuple[tuple[str, Any, str], ...] = (
    ("--faults", COUNT, f"Number of faults. Default: {FAULTS}, or 1 with --at."),
    (
        "--kinds",
        OptionType(
            "KIND,...",
            f"kinds of {', '.join(KINDS)}",
            lambda text: text if KINDS.keys() >= {*text.split(",")} else None,
        ),
        "Kinds of faults to draw from. Default: all.",
    ),
    ("--seed", NUMBER, "Seed by which faults are drawn. Default: 0."),
    (
        "--at",
        OptionType(
            "PHASE:STEP",
            f"a place such as step:12 or save:20, of {STEP}, {', '.join(PHASES)}",
            lambda text: text if _PLACE.fullmatch(text) else None,
        ),
        "Where faults happen: a phase, or step for any, and the number of optimizer steps made by then.",
    ),
    ("--only", COUNT, "Raise only the fault of this number, as in the run that had it."),
    ("--budget", COUNT, f"Minutes for all runs. Default: {BUDGET}."),
    ("--json", FILE, "Write the verdict into this file, as JSON."),
    (
        "--share",
        OptionType("PATH,...", "paths such as data,models", str),
        "Files and folders of the working directory that are linked and not copied: what is written there is yours.",
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
    share: str | None,
) -> int:
    """Run `accel chaos`, and print what it finds.

    Args:
        options: The script, its arguments and the options of `accel launch`.
        faults: Number of faults. Default: 10, or 1 at a place.
        kinds: Kinds to draw from. Default: all.
        seed: Seed of the draw. Default: 0.
        at: Place of the faults. Default: any.
        only: Number of the only fault to raise.
        budget: Minutes for all runs. Default: 10.
        json: Path of a file for the verdict.
        share: Paths of the working directory to link and not to copy, with commas.

    Returns:
        The exit code: 0 if the script recovered, 1 if not, 2 if the undisturbed run fails.

    Raises:
        CannotRun: Nothing was started, or no fault can be raised; the message has every reason.
    """
    count, seed, minutes = faults or (1 if at else FAULTS), seed or 0, budget or BUDGET
    world = read_script_job("accel chaos", options).count
    deadline = time.monotonic() + 60 * minutes
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="accel-chaos-", ignore_cleanup_errors=True) as name:

        def finished(what: str, **more: Any) -> ScriptRun:
            folder = Path(name).resolve() / what
            return ScriptRun(folder, options, world, share, deadline, **more).finish()

        say(f"an undisturbed run and a run with {count} faults; {world} processes, seed {seed}, at most {minutes} min")
        undisturbed = finished(UNDISTURBED)
        steps = len(undisturbed.history.steps)
        say(f"the undisturbed run: {steps} optimizer steps in {undisturbed.seconds:.1f} s")
        if undisturbed.codes != [0] or not steps:
            print(*undisturbed.printed, sep="\n")
            say(f"the undisturbed run already fails, with exit code {undisturbed.codes[-1]}")
            return 2
        drawn = draw(
            count,
            kinds.split(",") if kinds else [*KINDS],
            undisturbed.history.places,
            seed=seed,
            at=at or STEP,
        )
        planned = drawn[only - 1 : only] if only else drawn
        if not planned:
            raise CannotRun("accel chaos", [f"--only {only}: there are {count} faults (--faults)"])
        disturbed = finished("disturbed", planned=planned, until=deadline - RESERVED * undisturbed.seconds)
        expected = undisturbed
        if resizes := disturbed.history.resizes:
            say("a run without faults, which is resized after the same steps")
            planned = [Fault(STEP, 0, after, kind="resize") for after in resizes]
            expected = finished("resized", planned=planned, until=deadline)
        # it imports accel, which a launcher that is forked has no use for
        from accel_chaos.verdict import judge, lines_of

        verdict = judge(undisturbed, expected, disturbed)
    print(*lines_of(verdict), sep="\n")
    if json:
        Path(json).write_text(json_format.dumps(verdict, indent=2))
    return 0 if verdict["recovered"] else 1


COMMAND = LaunchCommand(
    "chaos",
    run,
    own=[LaunchOption(flag, type=type, key=None, about=about) for flag, type, about in OWN],
    options=[
        option
        for option in OPTIONS
        # for what is not started here, or is not run
        if option.name not in ("no_python", "explain", "dry_run", "submit", "submit_options", "kind", "submit_file")
    ],
    words="SCRIPT [arguments of the script]",
    help=HELP,
    epilog=EPILOG,
)
