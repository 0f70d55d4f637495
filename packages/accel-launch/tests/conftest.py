"""The command line, in a process of its own or in this one, with an environment that says nothing."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from accel_testing import stretched
from command_here import command_here
from silent_environ import silent

Start = Callable[..., "subprocess.Popen[str]"]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def silent_environ(tmp_path: Path) -> dict[str, str]:
    """An environment without settings or ranks."""
    return silent(tmp_path)


@pytest.fixture
def python() -> str:
    """The Python that runs `accel`; a file of tests whose scripts import torch replaces it by `forking_python`."""
    return sys.executable


@pytest.fixture
def start(tmp_path: Path, silent_environ: Mapping[str, str], python: str) -> Start:
    """Starts `accel` with some arguments in the temporary folder."""

    def start(*arguments: str, environ: Mapping[str, str] | None = None) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [python, "-m", "accel_launch", *arguments],
            cwd=tmp_path,
            env={**silent_environ, **(environ or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


@pytest.fixture
def accel_program(start: Start) -> Run:
    """Runs `accel` with some arguments as a program of its own, to its end."""

    def run(
        *arguments: str, input: str = "", environ: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        with start(*arguments, environ=environ) as process:
            try:
                out, err = process.communicate(input, timeout=stretched(60))
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    return run


@pytest.fixture
def accel(tmp_path: Path, silent_environ: Mapping[str, str], capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs `accel` with some arguments in this process, in the temporary folder; it starts no job."""
    return command_here(tmp_path, silent_environ, capfd)
