"""A training program, as it is and with changes, and what `accel rehearse` says of it."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).parent / "programs"


@dataclass(frozen=True)
class Rehearsed:
    """The end of a rehearsal."""

    code: int
    words: str
    report: dict[str, Any]


Rehearse = Callable[..., Rehearsed]


@pytest.fixture
def rehearse(tmp_path: Path) -> Rehearse:
    def run(script: Path, *options: str, arguments: tuple[str, ...] = ()) -> Rehearsed:
        file = tmp_path / "rehearsal.json"
        command = [sys.executable, "-m", "accel", "rehearse", *options, "--json", str(file), str(script), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=500)
        report = json.loads(file.read_text()) if file.exists() else {}
        return Rehearsed(done.returncode, done.stdout + done.stderr, report)

    return run
