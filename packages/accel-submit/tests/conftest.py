"""The command line, in this process or in one of its own, with an environment that says nothing."""

import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from accel_testing import stretched
from command_here import Run, command_here
from silent_environ import silent


@pytest.fixture
def silent_environ(tmp_path: Path) -> dict[str, str]:
    """An environment without settings or ranks."""
    if not entry_points(group="accel.schedulers"):
        pytest.skip("accel-submit is not installed: nothing is found by an entry point")
    return silent(tmp_path)


@pytest.fixture
def accel(tmp_path: Path, silent_environ: Mapping[str, str], capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs `accel` with some arguments in this process, in the temporary folder; it starts no job."""
    return command_here(tmp_path, silent_environ, capfd)


@pytest.fixture
def accel_program(tmp_path: Path, silent_environ: Mapping[str, str]) -> Run:
    """Runs `accel` with some arguments as a program of its own in the temporary folder, to its end."""

    def run(*arguments: str, environ: Mapping[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "accel_launch", *arguments],
            cwd=tmp_path,
            env={**silent_environ, **(environ or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=stretched(60),
            check=False,
        )

    return run
