"""`accel rehearse` finds the peak of memory that torch's allocator has on the GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import mkdtemp

from gpu_checks.check import Findings, Setup, Skipped

PROGRAM = Path(__file__).parents[1] / "rehearsed_program.py"
#: how far a rehearsal may be from the allocator's peak, in percent: below it, and above it
UNDER, OVER = 2, 5
COMMAND = "from accel_rehearse.command import COMMAND; COMMAND()"


def run(setup: Setup, findings: Findings) -> None:
    """Rehearses a training in several precisions, and runs it; a rehearsal on the CPU has no peak to compare with."""
    sizes = {
        "width": setup.size(1024, 64),
        "layers": setup.size(24, 2),
        "rows": setup.size(8, 2),
        "tokens": setup.size(512, 16),
        "words": setup.size(16384, 64),
    }
    words = [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
    for precision in ("no", "bf16"):
        with findings.part(precision):
            answer = Path(mkdtemp()) / "rehearsed.json"
            asked = ["-n", "1", "--device", "h100", "--mixed_precision", precision, "--json", str(answer)]
            _output("-c", COMMAND, *asked, str(PROGRAM), *words)
            peak = json.loads(answer.read_text())["ranks"]["0"]["peak_bytes"]
            findings.facts[f"{precision}: GiB rehearsed"] = round(peak / 2**30, 3)
            if setup.rehearsal:
                raise Skipped("the allocator's peak needs CUDA")
            there = int(_output(str(PROGRAM), *words, ACCEL_MIXED_PRECISION=precision).split()[-1])
            off = 100 * (peak / there - 1)
            findings.facts[f"{precision}: GiB of the allocator"] = round(there / 2**30, 3)
            findings.facts[f"{precision}: off"] = f"{off:+.2f} %"
            assert -UNDER <= off <= OVER, f"the rehearsal is {off:+.2f} % off"


def _output(*arguments: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout
