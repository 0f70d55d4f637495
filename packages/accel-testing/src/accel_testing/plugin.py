"""The pytest plug-in: the fixture `world`, and the check for what tests leave behind."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from accel_testing import leak_check
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


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker.

    Raises:
        UsageError: ACCEL_TESTING_TIME_FACTOR is no number from 1 to 1000.
    """
    try:
        stretched(1)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    kinds = ", ".join(leak_check.KINDS)
    config.addinivalue_line("markers", f"leaves(*kinds): the test may leave these behind: {kinds}")


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


def _allowed(item: pytest.Item) -> frozenset[str]:
    allowed = frozenset(kind for mark in item.iter_markers("leaves") for kind in mark.args)
    if unknown := allowed - set(leak_check.KINDS):
        pytest.fail(f"mark leaves({', '.join(sorted(unknown))}): expected some of {', '.join(leak_check.KINDS)}")
    return allowed


@pytest.fixture(autouse=True)
def accel_testing_leak_check(request: pytest.FixtureRequest) -> Iterator[None]:
    """Seed the generators for a test, undo what it leaves behind except threads, and fail it for forbidden leaks."""
    allowed = _allowed(request.node)
    before = leak_check.process_state()
    with seeded(0):
        yield
    left = [sentence for kind, sentence in leak_check.clean_up(before).items() if kind not in allowed]
    if left:
        pytest.fail("the test left behind\n  " + "\n  ".join(left), pytrace=False)
