"""Run `accel verify`: compare a script as configured with plain PyTorch, or check a consumption log."""

import re
import sys
import tempfile
from pathlib import Path

from accel_launch.cli.launch_command import LaunchCommand, ResolvedOptions
from accel_launch.cli.launch_option import LaunchOption
from accel_launch.cli.option_types import COUNT, FILE, OptionType
from accel_launch.cli.options import OPTIONS
from accel_launch.script_job import read_script_job
from accel_state.errors import CannotRun

RUNNER = "accel_verify.runner"
STEPS = 5
HELP = """Runs SCRIPT, unchanged, as accel launch would with these options, and then as plain PyTorch: one process on
the CPU, in float32, with the batches of all processes and no step code of accel. Stops both after some optimizer steps,
and names the first thing that differs: micro-batches, learning rates, parameters that the optimizer lacks, dtypes,
losses, gradients, parameters after a step, what a save and load round trip changes. SCRIPT has to use accel's
Accelerator."""
EPILOG = """\b
examples:
  accel verify train.py                             what accel launch train.py would start
  accel verify -n 2 --cpu train.py --lr 0.1         on two processes on the CPU
  accel verify --mixed_precision bf16 --steps 20 train.py
  accel verify --consumption_log served.jsonl       runs nothing

exit codes: 0 if nothing differs; 1 if something does, if nothing can be compared, or if SCRIPT fails; 2 if nothing
could be started."""


_PART = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]{1,2})?", re.ASCII | re.IGNORECASE)

OWN = (
    LaunchOption("--steps", type=COUNT, key=None, about=f"Optimizer steps to compare. Default: {STEPS}."),
    LaunchOption(
        "--tolerance",
        type=OptionType("TOLERANCE", "a number such as 1e-4", lambda text: text if _PART.fullmatch(text) else None),
        key=None,
        about="By how much gradients may differ, as a part of the largest of each parameter. Default: 1e-4 on the CPU,"
        " 5e-3 on an accelerator, 0.2 in bf16 and fp16.",
    ),
    LaunchOption(
        "--consumption_log",
        type=FILE,
        key=None,
        about="Run nothing: prove from a consumption log of loaders that each epoch served each sample once.",
    ),
)


def run(options: ResolvedOptions, steps: int | None, tolerance: str | None, consumption_log: str | None) -> int:
    """Run `accel verify`, and print what it finds.

    Args:
        options: The script, its arguments and the options of `accel launch`.
        steps: Number of steps to compare of each optimizer. Default: 5.
        tolerance: Largest relative difference of a gradient, as text. Default: by precision and device.
        consumption_log: Path of a consumption log to check; then no script runs.

    Returns:
        The exit code: 0 if nothing differs, 1 if something differs or nothing can be compared, and that of the script
        if it fails.

    Raises:
        CannotRun: Nothing was started; the message has every reason.
    """
    if consumption_log is not None:
        return _prove(consumption_log)
    steps = steps or STEPS
    job = read_script_job("accel verify", options)
    with tempfile.TemporaryDirectory(prefix="accel-verify-") as folder:
        kind = "module" if options.settings.module else "script"
        arguments = [folder, str(steps), tolerance or "", kind, options.script or "", *options.arguments]
        processes = "1 process" if job.count == 1 else f"{job.count} processes"
        _say(f"{steps} optimizer steps as configured, on {processes}; dropout is off, nothing is saved or resumed")
        code, last_words = job.run(RUNNER, ["configured", *arguments], num_processes=job.count)
        if code:
            return _failed("as configured", code, last_words)
        _say("the same steps as plain PyTorch: one process on the CPU, in float32, with the batches of all processes")
        plain: dict[str, object] = {"num_processes": 1, "cpu": True, "gpu_ids": None, "mixed_precision": "no"}
        if {"tp_size", "dp_shard_size"}.isdisjoint(options.settings.parallelism_config or {}):
            plain["parallelism_config"] = {}
        code, last_words = job.run(RUNNER, ["plain", *arguments], **plain)
        if code and not (Path(folder) / "verdict").exists():
            return _failed("as plain PyTorch", code, last_words)
        return code


def _prove(path: str) -> int:
    from accel_verify.consumption_log import ConsumptionLogError, verify

    try:
        served = verify(path)
    except FileNotFoundError as error:
        raise CannotRun("accel verify", [str(error)]) from None
    except ConsumptionLogError as error:
        _say(str(error))
        return 1
    _say(f"{path} proves that each sample was served once")
    for epoch in served:
        pieces = f" in {epoch.pieces} pieces" if epoch.pieces > 1 else ""
        end = "" if epoch.complete else ", and its end is not there"
        print(f"  loader {epoch.loader}, epoch {epoch.epoch}: {epoch.unit} {epoch.first} to {epoch.upto}{pieces}{end}")
    return 0


def _failed(how: str, code: int, last_words: str) -> int:
    print(last_words, file=sys.stderr, flush=True)
    _say(f"the script failed {how}: nothing was compared")
    return code


def _say(text: str) -> None:
    print(f"accel verify: {text}", flush=True)


COMMAND = LaunchCommand(
    "verify",
    run,
    own=OWN,
    options=[option for option in OPTIONS if option.name != "no_python"],
    words="SCRIPT [arguments of the script]",
    help=HELP,
    epilog=EPILOG,
)
