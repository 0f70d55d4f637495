"""Run `accel rehearse`: a script as one rank of many, without the other ranks and without a device."""

from __future__ import annotations

import re
import sys
import tempfile
from contextlib import suppress
from dataclasses import replace
from json import dumps, loads
from pathlib import Path
from typing import Any

import click
from accel_launch.cli.launch_command import LaunchCommand, ResolvedOptions
from accel_launch.cli.launch_option import LaunchOption
from accel_launch.cli.option_types import COUNT, FILE, SWITCH, OptionType, as_text
from accel_launch.cli.options import BY_NAME, OPTIONS
from accel_launch.config.option_entries import sharding_problems
from accel_launch.script_job import read_script_job
from accel_state.errors import CannotRun

from accel_rehearse.hardware import KNOWN, hardware_of, read_number, read_rates
from accel_rehearse.protected_files import remove_made
from accel_rehearse.report import report_of, table_of

RUNNER = "accel_rehearse.runner"
STEPS = 3
HELP = """Runs SCRIPT, unchanged, as one rank of a job that accel launch would start with these options, for some
optimizer steps, without the other ranks and without their devices: tensors have shapes and no numbers. Says what memory
a rank takes, what a step sends, how long an epoch and the schedule are, and what is wrong. SCRIPT has to use accel's
Accelerator."""
EPILOG = """\b
examples:
  accel rehearse -n 64 --num_machines 8 --device h100 --use_fsdp train.py
  accel rehearse -n 8 --memory 80GB train.py --batch_size 4
  accel rehearse -n 64 --json rehearsal.json train.py

exit codes: 0 if nothing is wrong; 1 if something is; 2 if SCRIPT cannot be rehearsed."""


MEASURED = re.compile(r"([0-9]*\.?[0-9]+)s?(@1)?")
_RANKS = re.compile(r"[0-9]+(,[0-9]+)*")


_RATE = OptionType("RATE", "a number such as 990e12, 80GB or 2GB/s", read_number)

#: for each option: its type, and words for the help
OWN = [
    LaunchOption(f"--{name}", type=type, key=None, about=about)
    for name, type, about in (
        ("steps", COUNT, f"Optimizer steps to rehearse. Default: {STEPS}."),
        (
            "ranks",
            OptionType("RANKS", "ranks such as 0,63", _RANKS.fullmatch),
            "The ranks to rehearse, each by itself. Default: the first and the last.",
        ),
        ("json", FILE, "Write all that was found into this file."),
        (
            "measured",
            OptionType("SECONDS@1", "seconds on one device such as 0.41s@1", MEASURED.fullmatch),
            "How long a step of the same batch takes on one device, such as 0.41s@1.",
        ),
        (
            "device",
            click.Choice([*KNOWN]),
            "The device of each rank. Default: none, so that nothing is too large.",
        ),
        ("memory", _RATE, "Memory of a device in bytes, in place of that of --device."),
        ("flops", _RATE, "Floating-point operations of a device per second, one rate for every precision."),
        (
            "bandwidth",
            OptionType("RATES", "bytes per second such as 450GB/s,50GB/s", read_rates),
            "Bytes per second that a rank sends within a machine, and between machines.",
        ),
        ("disk", _RATE, "Bytes per second that are written to the disk."),
        (
            "in_place",
            SWITCH,
            "Let SCRIPT write, change and remove any file. Default: only what it makes, which is removed at the end.",
        ),
    )
]


def run(
    options: ResolvedOptions,
    steps: int | None,
    ranks: re.Match[str] | None,
    json: str | None,
    measured: re.Match[str] | None,
    in_place: bool | None,
    **device: Any,
) -> int:
    """Run a script as single ranks of its job, and print what was found.

    Args:
        options: The script, its arguments and the options of `accel launch`.
        steps: Number of optimizer steps. Default: 3.
        ranks: Match of ranks to rehearse, with commas. Default: the first and the last.
        json: Path of a file to write.
        measured: Match of seconds of a step on one device, as 0.41s@1.
        in_place: Let the script write as a job would.
        device: Name and rates of a device.

    Returns:
        The exit code: 0 if nothing is wrong, 1 if something is, 2 if the script cannot be rehearsed.

    Raises:
        CannotRun: Nothing was started; the message has every reason.
    """
    settings = options.settings
    size = settings.num_processes or 1
    machines = settings.num_machines or 1
    problems = sharding_problems(settings, size)
    chosen = sorted({*map(int, ranks[0].split(","))} if ranks else {0, size - 1})
    problems += [f"--ranks {rank}: the job has ranks 0 to {size - 1}" for rank in chosen if rank >= size]
    if size % machines:
        problems.append(f"{size} processes on {machines} machines: each needs equally many")
    if settings.use_deepspeed:
        problems.append("DeepSpeed's engine computes by itself, and cannot be rehearsed: rehearse with --use_fsdp")
    if problems:
        raise CannotRun("accel rehearse", problems)
    asked = {
        "ranks": chosen,
        "size": size,
        "machines": machines,
        "steps": steps or STEPS,
        "cpu": settings.cpu,
        "module": settings.module,
        "in_place": in_place,
    }
    report = report_of(_rehearse(options, asked), asked, hardware_of(**device), measured)
    if json:
        Path(json).write_text(dumps(report, indent=2) + "\n")
    print(table_of(report))
    return 2 if report["refusals"] else 1 if report["mistakes"] else 0


def _rehearse(options: ResolvedOptions, asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the notes of each rank."""
    settings = options.settings
    ranks = asked["ranks"]
    # the sizes are those of the job, and not of the ranks that run
    sizes = as_text(settings.parallelism_config or "")
    environ = {**options.environ, "RANK": "0", BY_NAME["parallelism_config"].envvar: sizes}
    environ.pop("WORLD_SIZE", None)
    alone = settings.with_flags(
        num_processes=len(ranks), num_machines=1, parallelism_config=None, cpu=True, gpu_ids=None
    )
    job = read_script_job("accel rehearse", replace(options, environ=environ, settings=alone))
    with tempfile.TemporaryDirectory(prefix=".accel-rehearse-") as folder:
        made = Path(folder, "made")
        made.touch()
        try:
            _, words = job.run(RUNNER, [dumps(asked | {"folder": folder}), options.script or "", *options.arguments])
        finally:
            remove_made(made)
        with suppress(FileNotFoundError):
            return [loads(Path(folder, f"rank-{rank}.json").read_text()) for rank in ranks]
    print(words, file=sys.stderr, flush=True)
    raise CannotRun("accel rehearse", ["the process of a rank has ended before it could say what it found"])


COMMAND = LaunchCommand(
    "rehearse",
    run,
    own=OWN,
    options=[
        option
        for option in OPTIONS
        # for what is not run here, is not started or is not told
        if option.name not in ("no_python", "explain", "dry_run", "submit", "submit_options", "kind", "submit_file")
    ],
    words="SCRIPT [arguments of the script]",
    help=HELP,
    epilog=EPILOG,
)
