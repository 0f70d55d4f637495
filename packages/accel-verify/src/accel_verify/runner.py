"""Run a script as configured or as plain PyTorch, in a process that `accel verify` starts."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from accel.utils import set_seed
from accel_state.environ import process_environ
from accel_state.environments import detect

from accel_verify.checker import Checker
from accel_verify.comparison import Mismatch
from accel_verify.recorder import Recorder, recording
from accel_verify.reference import plain_pytorch
from accel_verify.reference_loader import CannotVerify
from accel_verify.step_watcher import StepLimitReached
from accel_verify.trial import trial


@dataclass(frozen=True, slots=True)
class RunComparison:
    """The result of a comparison.

    Args:
        same: True if nothing differs.
        lines: The lines to print.
    """

    same: bool
    lines: tuple[str, ...]


def main(arguments: Sequence[str]) -> int:
    """Run a script in the role that `accel verify` asks for, and print what differs.

    Args:
        arguments: The words ROLE FOLDER STEPS TOLERANCE KIND SCRIPT [ARGUMENTS].

    Returns:
        The exit code: 1 if something differs or nothing can be compared, else 0.
    """
    role, folder, steps, tolerance, kind, name, *rest = arguments
    script = partial(run_script, name, rest, module=kind == "module")
    if role == "configured":
        record(script, Path(folder), detect(process_environ()).rank, int(steps))
        return 0
    verdict = compare(script, Path(folder), int(steps), float(tolerance) if tolerance else None)
    print("\n".join(verdict.lines), flush=True)
    (Path(folder) / "verdict").touch()
    return 0 if verdict.same else 1


def run_script(script: str, arguments: Sequence[str], *, module: bool) -> None:
    """Run a script as `python script arguments` would.

    Args:
        script: Path of a file, or name of a module.
        arguments: Arguments of the script.
        module: True if `script` is the name of a module.

    Raises:
        SystemExit: The script exits with another code than 0.
        BaseException: Whatever else the script raises.
    """
    sys.argv = [script, *arguments]
    set_seed(0)  # a script without a seed would start from other weights each time
    try:
        if module:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(script).resolve().parent)
            runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise


def record(script: Callable[[], None], folder: Path, rank: int, steps: int) -> None:
    """Run a script as configured, and record its steps.

    Args:
        script: Function that runs the script.
        folder: Folder for the records of all ranks.
        rank: Rank of this process.
        steps: Number of steps to record of each optimizer.
    """
    recorder = Recorder(folder, rank, steps)
    with trial(), recording(recorder), suppress(StepLimitReached):
        script()
    recorder.finish()


def compare(script: Callable[[], None], folder: Path, steps: int, tolerance: float | None = None) -> RunComparison:
    """Run a script as plain PyTorch, and compare its steps with the records of all ranks.

    Args:
        script: Function that runs the script.
        folder: Folder with the records.
        steps: Number of steps to compare of each optimizer.
        tolerance: Largest relative difference of a gradient. Default: by precision and device of the recorded run.
    """
    checker = Checker(folder, steps, tolerance)
    try:
        checker.check_steps()
        with trial(), plain_pytorch(checker), suppress(StepLimitReached):
            script()
        checker.finish()
        same, first = True, f"nothing differs in {checker.made - len(checker.skipped)} optimizer steps"
        first += "" if checker.is_done else f" (the script ended before the {steps} that were asked for)"
    except Mismatch as difference:
        same, first = False, f"{checker.where}{difference}"
    except CannotVerify as reason:
        same, first = False, f"cannot compare: {reason}"
    lines = [f"accel verify: {first}"]
    if same:
        alike = f", and the same on {checker.ranks} ranks" if checker.ranks > 1 else ""
        lines += [
            f"  losses: off by {checker.largest['losses']:.1e} at most",
            f"  gradients: off by {checker.largest['gradients']:.1e} of each parameter's largest at most"
            f" ({checker.tolerance:.0e} is tolerated){alike}",
            f"  parameters after each step: off by {checker.largest['parameters']:.1e} of the step at most{alike}",
            "  learning rates and dtypes: equal; a save and load round trip changes nothing",
        ]
    if checker.skipped:
        skipped = ", ".join(map(str, checker.skipped))
        lines.append(f"  of steps that were due both runs skipped number {skipped}: fp16 overflowed")
    return RunComparison(same, tuple(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
