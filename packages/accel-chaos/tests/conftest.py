"""`accel chaos` as a test calls it."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Chaos = Callable[..., tuple[int, str, dict[str, Any]]]


@pytest.fixture
def chaos(forking_python: str, tmp_path: Path) -> Chaos:
    """Runs `accel chaos` in an empty folder; gives the exit code, what was printed and the verdict."""

    def run(*arguments: str | Path) -> tuple[int, str, dict[str, Any]]:
        path, here = tmp_path / "verdict.json", tmp_path / "here"
        here.mkdir(exist_ok=True)
        options = ["--cpu", "--json", path, "--budget", "5", *arguments]
        command = [forking_python, "-m", "accel_launch", "chaos", *map(str, options)]
        done = subprocess.run(command, cwd=here, capture_output=True, text=True)
        verdict = json.loads(path.read_text()) if path.exists() else {}
        return done.returncode, done.stdout + done.stderr, verdict

    return run
