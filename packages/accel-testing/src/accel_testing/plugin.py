"""The pytest plug-in: the fixture `world`, and the same random numbers for each test."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from accel_testing.dispositions import restore_defaults
from accel_testing.process_pool import MakePool, ProcessPool
from accel_testing.seeds import seeded
from accel_testing.time_limits import stretched

pytest_plugins = ["accel_testing.pytest_timeout"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --preload, and to the configuration file `world_preload`."""
    group = parser.getgroup("accel-testing")
    group.addoption(
        "--preload",
        action="append",
        default=[],
        metavar="MODULE",
        help="one more module for `world_preload`: a slow import, which pays if many tests of the session need it",
    )
    parser.addini(
        "world_preload",
        "modules that are imported once for all workers of `world`",
        "linelist",
        [],
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Give tests, and the programs that they start, the default signals and one OpenMP thread.

    OMP_NUM_THREADS keeps a value that it has. Small tensors need no more threads: a thread that waits for another
    spins, and takes a core from the tests beside.
    """
    restore_defaults()
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_configure() -> None:
    """Raise UsageError if ACCEL_TESTING_TIME_FACTOR is no number from 1 to 1000."""
    try:
        stretched(1)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_collection_finish() -> None:
    """Hide what is loaded from the garbage collector, which would take a second to look through it."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[MakePool]:
    """Make pools of fresh workers for this test, and close them after it."""
    preload = [*request.config.getini("world_preload"), *request.config.getoption("--preload")]
    with ExitStack() as stack:

        def make(size: int, *, join: bool = True) -> ProcessPool:
            return stack.enter_context(ProcessPool(size, join=join, preload=preload))

        yield make


@pytest.fixture(autouse=True)
def accel_testing_seeds() -> Iterator[None]:
    """Seed the generators for a test, and restore them after it."""
    with seeded(0):
        yield
