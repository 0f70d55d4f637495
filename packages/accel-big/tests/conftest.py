"""The command line, in this process or in one of its own, with an environment that says nothing."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from accel_testing import stretched
from command_here import Run, command_here
from silent_environ import silent


@pytest.fixture
def silent_environ(tmp_path: Path) -> dict[str, str]:
    """An environment without settings, in which the launcher is importable."""
    pytest.importorskip("accel_launch", reason="the command is one of package accel-launch")
    return silent(tmp_path)


@pytest.fixture
def accel(tmp_path: Path, silent_environ: Mapping[str, str], capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs `accel` with some arguments in this process, in the temporary folder."""
    return command_here(tmp_path, silent_environ, capfd)


@pytest.fixture
def accel_program(tmp_path: Path, silent_environ: Mapping[str, str]) -> Run:
    """Runs `accel` with some arguments as a program of its own in the temporary folder."""

    def run(*arguments: str, environ: Mapping[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "accel_launch", *arguments]
        everything = {**silent_environ, **(environ or {})}
        return subprocess.run(
            command, cwd=tmp_path, env=everything, capture_output=True, text=True, timeout=stretched(60), check=False
        )

    return run
