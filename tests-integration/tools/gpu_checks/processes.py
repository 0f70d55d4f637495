"""Runs each check in a process of its own: an error of CUDA's leaves a process unusable, and a hang has to be ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from gpu_checks.check import Check, Outcome, Setup, Status

#: all checks are over by then: a GPU machine may be lent for ten minutes at a time
BUDGET_S = 520.0
#: how much longer a check may take on the CPU, which others may use as well
REHEARSED = 4
#: no check sees anything in less
LEAST_S = 1
#: seconds that a process has to print its stacks when its time is over
STACKS_S = 3
LAST_LINES = 30
#: why a check did not run
OUT_OF_TIME = "the time was over (--budget)"


def run_check(check: Check, setup: Setup, left_s: float) -> Outcome:
    """How the check ended, after `left_s` seconds at most."""
    limit_s = min(check.limit_s * setup.size(1, REHEARSED), left_s)
    if limit_s < LEAST_S:
        return Outcome(check.name, Status.SKIPPED, OUT_OF_TIME)
    began = monotonic()
    with TemporaryDirectory(prefix="accel-gpu-checks-") as folder:
        answer, log = Path(folder, "answer.json"), Path(folder, "log.txt")
        arguments = ["--check", check.name, "--answer", str(answer), *(["--rehearse"] if setup.rehearsal else [])]
        scratch = {**os.environ, "TMPDIR": folder, "PYTHONFAULTHANDLER": "1"}
        scratch["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "gpu_checks", *arguments],
                env=scratch,
                stdout=output,
                stderr=output,
                start_new_session=True,  # so that its ranks can be ended with it
            )
            try:
                code: int | None = process.wait(timeout=limit_s)
            except subprocess.TimeoutExpired:
                code = None
                process.send_signal(signal.SIGABRT)  # faulthandler prints where it is
                _ended(process)
            finally:
                _end_group(process)
        seconds = monotonic() - began
        printed = log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        if answer.exists():
            outcome = replace(Outcome.from_json(answer.read_text()), seconds=seconds)
            if outcome.status is Status.FAILED and printed:
                return replace(outcome, reason="\n".join([outcome.reason, "printed:", *printed]))
            return outcome
        how = f"not over after {limit_s:.0f} s" if code is None else f"the process ended with code {code}"
        kept = kept_beside(answer)
        before = Outcome.from_json(kept.read_text()) if kept.exists() else Outcome(check.name, Status.FAILED)
        reason = "\n".join([how, *([before.reason] if before.reason else []), *printed])
        return replace(before, status=Status.FAILED, reason=reason, seconds=seconds)


def kept_beside(answer: Path) -> Path:
    """The file with what a check has seen in the parts that are over."""
    return answer.with_suffix(".kept")


def write_outcome(outcome: Outcome, path: Path) -> None:
    """Writes an outcome, of which a reader never sees a half."""
    aside = path.with_suffix(".partial")
    aside.write_text(outcome.as_json())
    aside.replace(path)


def _ended(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(timeout=STACKS_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _end_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):  # all of them are gone
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
