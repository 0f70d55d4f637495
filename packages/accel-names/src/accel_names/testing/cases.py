"""Give tests for Accelerate the classes that they derive from, and commands that they run."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tempfile
import unittest
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import torch
from accel_state import AcceleratorState
from accel_state.environ import process_environ

from accel_names.availability import is_torch_version
from accel_names.gradient_state import GradientState


class AccelerateTestCase(unittest.TestCase):
    """A class of tests after each of which the state of the process is reset."""

    def tearDown(self) -> None:
        """Let the process ask for another state."""
        super().tearDown()
        AcceleratorState._reset_state(True)
        GradientState._reset_state()


class TempDirTestCase(unittest.TestCase):
    """A class of tests that share a folder, `tmpdir`, which is empty before each unless `clear_on_setup` is false."""

    clear_on_setup: ClassVar[bool] = True
    tmpdir: ClassVar[Path]

    @classmethod
    def setUpClass(cls) -> None:
        """Make the folder."""
        cls.tmpdir = Path(tempfile.mkdtemp())

    @classmethod
    def tearDownClass(cls) -> None:
        """Remove the folder."""
        shutil.rmtree(cls.tmpdir, ignore_errors=True)

    def setUp(self) -> None:
        """Remove what is in the folder."""
        if self.clear_on_setup:
            for path in self.tmpdir.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()


class MockingTestCase(unittest.TestCase):
    """A class of tests that begin mocks in `setUp`."""

    def add_mocks(self, mocks: Any) -> None:
        """Begin a mock, or several, until the end of the test."""
        for mock in mocks if isinstance(mocks, tuple | list) else (mocks,):
            self.enterContext(mock)


class SubprocessCallException(Exception):
    """The failure of a command, with all that it wrote."""


def run_command(
    command: Sequence[str | Path], return_stdout: bool = False, env: Mapping[str, str] | None = None
) -> str | None:
    """Run a command to its end.

    Args:
        command: The words of the command.
        return_stdout: Return what it wrote to stdout and stderr.
        env: Its environment; by default that of this process.

    Raises:
        SubprocessCallException: It fails.
    """
    words = list(map(str, command))
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, check=False)
    if done.returncode:
        raise SubprocessCallException(f"`{' '.join(words)}` ended with exit code {done.returncode}:\n{done.stdout}")
    return done.stdout if return_stdout else None


def capture_call_output(func: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """Call a function, and return what it printed.

    Args:
        func: The function.
        *args: Its arguments.
        **kwargs: Its keyword arguments.
    """
    with redirect_stdout(io.StringIO()) as printed:
        func(*args, **kwargs)
    return printed.getvalue()


def path_in_accelerate_package(*components: str) -> Path:
    """Return a path in the folder of the package accel."""
    return Path(os.fspath(import_module("accel").__path__[0])).joinpath(*components)


def require_torch_min_version(test_case: Any = None, version: str = "0") -> Any:
    """Skip a test if torch is older, or return the decorator if there is no test yet."""
    skip = unittest.skipUnless(is_torch_version(">=", version), f"it needs torch {version}")
    return skip if test_case is None else skip(test_case)


def run_first(test_case: Any) -> Any:
    """Return a test as it is: no device is here that a process keeps from the next."""
    return test_case


def memory_allocated_func() -> int:
    """Return how many bytes of the accelerator torch has given to tensors, which is 0 without one."""
    return torch.accelerator.memory_allocated() if torch.accelerator.is_available() else 0


def pytest_xdist_worker_id() -> int:
    """Return the number of this worker of pytest-xdist, or 0."""
    return int(process_environ().get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


def get_torch_dist_unique_port() -> int:
    """Return a port for this worker of pytest-xdist."""
    return 29500 + pytest_xdist_worker_id()
