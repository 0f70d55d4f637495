"""The real command line in a process of its own, with an environment that says nothing."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from accel_testing import stretched
from silent_environ import silent

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def silent_environ(tmp_path: Path) -> dict[str, str]:
    """An environment without settings, in which the launcher is importable."""
    pytest.importorskip("accel_launch", reason="the command is one of package accel-launch")
    return silent(tmp_path)


@pytest.fixture
def accel(tmp_path: Path, silent_environ: Mapping[str, str]) -> Run:
    """Runs `accel` with some arguments in the temporary folder."""

    def run(*arguments: str, environ: Mapping[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "accel_launch", *arguments]
        everything = {**silent_environ, **(environ or {})}
        return subprocess.run(
            command, cwd=tmp_path, env=everything, capture_output=True, text=True, timeout=stretched(60), check=False
        )

    return run
