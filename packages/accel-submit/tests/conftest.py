"""The real command line in a process of its own, with an environment that says nothing."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from accel_testing import stretched
from silent_environ import silent


@pytest.fixture
def silent_environ(tmp_path: Path) -> dict[str, str]:
    """An environment without settings or ranks."""
    return silent(tmp_path)


@pytest.fixture
def accel(tmp_path: Path, silent_environ: Mapping[str, str]) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Runs `accel` with some arguments in the temporary folder, to its end."""
    if not entry_points(group="accel.schedulers"):
        pytest.skip("accel-submit is not installed: nothing is found by an entry point")

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
