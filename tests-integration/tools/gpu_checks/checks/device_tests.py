"""The tests of the suite that run on any device."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from gpu_checks.check import Findings, Setup, Skipped

ROOT = Path(__file__).parents[4]
NEEDED = ("pytest", "pytest_timeout", "hypothesis", "accel_testing")
REHEARSED = "packages/accel-ops/tests/test_move.py"
#: what a test that takes the fixture has in its signature
USES_DEVICE = "device: torch.device"
LAST_LINES = 25


def run(setup: Setup, findings: Findings) -> None:
    """Runs `pytest -m device` with the device of this setup; no test of it may fail."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise Skipped(f"not installed: {', '.join(missing)}")
    # only these files are imported: others may need libraries that this machine lacks
    files = sorted(path for path in ROOT.glob("packages/*/tests/**/test_*.py") if USES_DEVICE in path.read_text())
    where = [REHEARSED] if setup.rehearsal else [str(path.relative_to(ROOT)) for path in files]
    options = ["-q", "-m", "device", f"--device={setup.kind}", "-p", "accel_testing", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, *where]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    lines = ended.stdout.splitlines()
    findings.facts["pytest"] = lines[-1].strip("= ") if lines else f"code {ended.returncode}"
    failed = [line for line in lines if re.match(r"(FAILED|ERROR)\b", line)]
    if ended.returncode:
        raise AssertionError("\n".join([*failed, *lines[-LAST_LINES:], *ended.stderr.splitlines()[-LAST_LINES:]]))
