"""Run `accel rehearse`: a script as one rank of many, without the other ranks and without a device."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
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
from accel_rehearse.report import report_of, table_of

RUNNER = "accel_rehearse.runner"
#: the folder in which ranks mark the files that the script makes
MADE = "made"
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


_SECONDS = re.compile(r"[0-9]*\.?[0-9]+s?(@1)?")


def _ranks(text: str) -> str | None:
    return text if text and all(part.strip().isdecimal() for part in text.split(",")) else None


def _option(flag: str, type: Any, about: str) -> LaunchOption:
    return LaunchOption(flag, type=type, key=None, about=about)


OWN = (
    _option("--steps", COUNT, f"Optimizer steps to rehearse. Default: {STEPS}."),
    _option(
        "--ranks",
        OptionType("RANKS", "ranks such as 0,63", _ranks),
        "The ranks to rehearse, each by itself. Default: the first and the last.",
    ),
    _option("--json", FILE, "Write all that was found into this file."),
    _option(
        "--measured",
        OptionType(
            "SECONDS", "seconds on one device such as 0.41s@1", lambda text: text if _SECONDS.fullmatch(text) else None
        ),
        "How long a step of the same batch takes on one real device, such as 0.41s@1.",
    ),
    _option(
        "--device",
        click.Choice(list(KNOWN), case_sensitive=False),
        "The device of each rank. Default: none, so that nothing is too large.",
    ),
    _option(
        "--memory",
        OptionType("BYTES", "bytes such as 80GB", read_number),
        "Memory of a device, in place of that of --device.",
    ),
    _option(
        "--flops",
        OptionType("RATE", "a number such as 990e12", read_number),
        "Floating-point operations of a device per second, in the precision of the job.",
    ),
    _option(
        "--bandwidth",
        OptionType("RATES", "bytes per second such as 450GB/s,50GB/s", read_rates),
        "Bytes per second that a rank sends within a machine, and between machines.",
    ),
    _option(
        "--in_place",
        SWITCH,
        "Let SCRIPT write, change and remove any file. Default: only what it makes, which is removed at the end.",
    ),
)


def run(
    options: ResolvedOptions,
    steps: int | None,
    ranks: str | None,
    json: str | None,
    measured: str | None,
    in_place: bool | None,
    **device: Any,
) -> int:
    """Run a script as single ranks of its job, and print what was found.

    Args:
        options: The script, its arguments and the options of `accel launch`.
        steps: Number of optimizer steps. Default: 3.
        ranks: Ranks to rehearse, with commas. Default: the first and the last.
        json: Path of a file to write.
        measured: Seconds of a step on one device, as 0.41s@1.
        in_place: Let the script write as a job would.
        device: Name and rates of a device.

    Returns:
        The exit code: 0 if nothing is wrong, 1 if something is, 2 if the script cannot be rehearsed.

    Raises:
        CannotRun: Nothing was started; the message has every reason.
    """
    settings = options.settings
    size, machines = settings.num_processes or 1, settings.num_machines or 1
    seconds = float(measured.partition("s")[0]) if measured else None
    hardware = hardware_of(**device)
    problems = sharding_problems(settings, size)
    chosen = sorted({int(part) for part in ranks.split(",")}) if ranks else sorted({0, size - 1})
    problems += [f"--ranks {rank}: the job has ranks 0 to {size - 1}" for rank in chosen if rank >= size]
    problems += [f"{size} processes on {machines} machines: each needs equally many"] if size % machines else []
    if settings.use_deepspeed:
        problems.append("DeepSpeed's engine computes by itself, and cannot be rehearsed: rehearse with --use_fsdp")
    if problems:
        raise CannotRun("accel rehearse", problems)
    with tempfile.TemporaryDirectory(prefix="accel-rehearse-") as folder:
        asked = {
            "ranks": chosen,
            "size": size,
            "machines": machines,
            "steps": steps or STEPS,
            "cpu": settings.cpu,
            "measured": seconds,
            "in_place": bool(in_place),
        }
        notes = _rehearse(options, Path(folder), asked)
    report = report_of(notes, asked, hardware)
    if json is not None:
        Path(json).write_text(dumps(report, indent=2) + "\n")
    print(table_of(report), flush=True)
    if report["refusals"]:
        return 2
    return 1 if report["mistakes"] else 0


def _rehearse(options: ResolvedOptions, folder: Path, asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the notes of each rank."""
    ranks: Sequence[int] = asked["ranks"]
    (folder / "asked.json").write_text(dumps(asked))
    (folder / MADE).mkdir()
    settings, environ = options.settings, dict(options.environ)
    arranged = settings.parallelism_config
    if arranged is not None:  # the sizes are those of the job, and not of the ranks that run
        environ[BY_NAME["parallelism_config"].envvar] = as_text(arranged)
    changed = {"num_processes": len(ranks), "num_machines": None, "parallelism_config": None, "cpu": True}
    options = replace(options, environ=environ, settings=settings.with_flags(**changed, gpu_ids=None))
    job = read_script_job("accel rehearse", options)
    kind = "module" if settings.module else "script"
    try:
        code, words = job.run(RUNNER, [str(folder), kind, options.script or "", *options.arguments])
    finally:
        remove_made(Path(mark.read_text()) for mark in (folder / MADE).iterdir())
    files = [folder / f"rank-{rank}.json" for rank in ranks]
    if code or not all(file.exists() for file in files):
        print(words, file=sys.stderr, flush=True)
        raise CannotRun("accel rehearse", ["the process of a rank has ended before it could say what it found"])
    return [loads(file.read_text()) for file in files]


def remove_made(paths: Iterable[Path]) -> None:
    """Remove what a rehearsal has made and is still there. A folder in which something else is stays."""
    for path in sorted(paths, key=lambda path: len(path.parts), reverse=True):
        with suppress(OSError):
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink()


COMMAND = LaunchCommand(
    "rehearse",
    run,
    own=OWN,
    options=[
        option for option in OPTIONS if option.name not in ("no_python", "submit", "submit_options", "submit_file")
    ],
    words="SCRIPT [arguments of the script]",
    help=HELP,
    epilog=EPILOG,
)
