"""`accel verify`: runs a script as configured and as plain PyTorch, or proves a ledger, and names what differs."""

import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from accel_launch.script_job import read_script_job, take_own_options
from accel_state.errors import CannotRun

RUNNER = "accel_verify.runner"
#: each option that accel launch does not have, with the words that it takes; for completion in a shell
FLAGS: Mapping[str, Sequence[str] | None] = {"--steps": (), "--tolerance": (), "--ledger": ()}

HELP = """\
usage: accel verify [--steps STEPS] [--tolerance TOLERANCE] [options of accel launch] SCRIPT [arguments of the script]
       accel verify --ledger FILE

Runs SCRIPT, unchanged, as accel launch would with these options, and then as plain PyTorch: one process on the CPU, in
float32, with the batches of all processes and no step code of accel. Stops both after some optimizer steps, and names
the first thing that differs: micro-batches, learning rates, parameters that the optimizer lacks, dtypes, losses,
gradients, parameters after a step, what a save and load round trip changes. SCRIPT has to use accel's Accelerator.

options:
  -h, --help
      This help. accel launch --help lists the options of accel launch; --no_python is none of them here.
  --steps STEPS
      How many optimizer steps to compare. Default: 5.
  --tolerance TOLERANCE
      By how much gradients may differ, as a part of the largest of each parameter. Default: 1e-4 on the CPU, 5e-3
      on an accelerator, 0.2 in bf16 and fp16.
  --ledger FILE
      Run nothing: prove from a ledger of loaders that each epoch served each sample once.

exit codes: 0 if nothing differs; 1 if something does, if nothing can be compared, or if SCRIPT fails; 2 if nothing
could be started.
"""


def run(tokens: Sequence[str]) -> int:
    """Exit code 0 if nothing differs, 1 if something does or the script fails.

    Raises: CannotRun with every reason why nothing was started.
    """
    own, rest = take_own_options(tokens, FLAGS)
    if "--help" in own:
        print(HELP, end="")
        return 0
    if "--ledger" in own:
        return _prove(own["--ledger"])
    steps, tolerance = own.get("--steps", "5"), own.get("--tolerance")
    problems = []
    if not steps.isdecimal() or int(steps) < 1:
        problems.append(f"--steps {steps!r}: expected a whole number of at least 1")
    if tolerance is not None and not re.fullmatch(r"\d*\.?\d+(e[+-]?\d+)?", tolerance, flags=re.IGNORECASE):
        problems.append(f"--tolerance {tolerance!r}: expected a number such as 1e-4")
    job = read_script_job("accel verify", rest, problems)
    with tempfile.TemporaryDirectory(prefix="accel-verify-") as folder:
        kind = "module" if job.line.flags.get("module") else "script"
        arguments = [folder, steps, tolerance or "", kind, job.line.script or "", *job.line.arguments]
        processes = "1 process" if job.count == 1 else f"{job.count} processes"
        _say(f"{steps} optimizer steps as configured, on {processes}; dropout is off, files are not saved")
        code, last_words = job.run(RUNNER, ["configured", *arguments], num_processes=job.count)
        if code:
            return _failed("as configured", code, last_words)
        _say("the same steps as plain PyTorch: one process on the CPU, in float32, with the batches of all processes")
        plain, unsuited = ["plain", *arguments], ("gpu_ids", "fp16")
        code, last_words = job.run(RUNNER, plain, without=unsuited, num_processes=1, cpu=True, mixed_precision="no")
        if code and not (Path(folder) / "verdict").exists():
            return _failed("as plain PyTorch", code, last_words)
        return code


def _prove(path: str) -> int:
    from accel_verify.ledger import LedgerError, verify

    try:
        served = verify(path)
    except FileNotFoundError as error:
        raise CannotRun("accel verify", [str(error)]) from None
    except LedgerError as error:
        _say(str(error))
        return 1
    _say(f"{path} proves that each sample was served once")
    for one in served:
        pieces = f" in {one.pieces} pieces" if one.pieces > 1 else ""
        end = "" if one.complete else ", and its end is not there"
        print(f"  loader {one.loader}, epoch {one.epoch}: {one.unit} {one.first} to {one.upto}{pieces}{end}")
    return 0


def _failed(how: str, code: int, last_words: str) -> int:
    print(last_words, file=sys.stderr, flush=True)
    _say(f"the script failed {how}: nothing was compared")
    return code


def _say(text: str) -> None:
    print(f"accel verify: {text}", flush=True)
