"""The pytest plug-in: fixtures `world` and `device`, option --device, and the check for what tests leave behind."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from accel_testing import leak_check
from accel_testing.dispositions import restore_defaults
from accel_testing.process_pool import MakePool, ProcessPool
from accel_testing.programs.forking_python import ForkingPython
from accel_testing.seeds import seeded
from accel_testing.time_limits import stretched

if TYPE_CHECKING:
    import torch

pytest_plugins = ["accel_testing.file_order", "accel_testing.pytest_timeout", "accel_testing.soak"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --device and --preload, and to the configuration file `world_preload`."""
    group = parser.getgroup("accel-testing")
    group.addoption(
        "--device", choices=["cpu", "cuda", "xla"], default="cpu", help="kind of device that fixture `device` gives"
    )
    group.addoption(
        "--preload",
        action="append",
        default=[],
        metavar="MODULE",
        help="one more module for `world_preload`: a slow import, which pays if many tests of the session need it",
    )
    parser.addini(
        "world_preload",
        "modules that are imported once for all workers of `world`, and all programs of `forking_python`",
        "linelist",
        [],
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Give tests, and what they start, the default signals and one OpenMP thread, unless OMP_NUM_THREADS is set.

    Small tensors need no more threads: a thread that waits for another spins, and takes a core from the tests beside.
    """
    restore_defaults()
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, and import torch_xla for --device=xla before any test, as it changes `os.environ`.

    Raises: UsageError if the factor of the limits of time is none.
    """
    try:
        stretched(1)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    kinds = ", ".join(leak_check.KINDS)
    config.addinivalue_line("markers", f"leaves(*kinds): the test may leave these behind: {kinds}")
    config.addinivalue_line("markers", "device: the test uses the fixture `device`; given to it by the plug-in")
    if config.getoption("--device") == "xla" and find_spec("torch_xla") is not None:
        import_module("torch_xla")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests that run on any device, so that `-m device` chooses them."""
    for item in items:
        if isinstance(item, pytest.Function) and "device" in item.fixturenames:
            item.add_marker("device")


def pytest_collection_finish() -> None:
    """Hides what is loaded from the garbage collector, which would take a second to look through it."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[MakePool]:
    """Makes pools of fresh workers for this test, and closes them after it."""
    with ExitStack() as stack:

        def make(size: int, *, join: bool = True) -> ProcessPool:
            return stack.enter_context(ProcessPool(size, join=join, preload=_preload(request.config)))

        yield make


@pytest.fixture(scope="session")
def forking_python(request: pytest.FixtureRequest) -> Iterator[str]:
    """Give the path of a stand-in for `sys.executable`, whose programs are forked with torch imported."""
    with ForkingPython(_preload(request.config)) as python:
        yield python.executable


def _preload(config: pytest.Config) -> list[str]:
    return [*config.getini("world_preload"), *config.getoption("--preload")]


@pytest.fixture
def device(request: pytest.FixtureRequest) -> torch.device:
    """The device of --device; the test is skipped when this machine has none."""
    import torch

    kind: str = request.config.getoption("--device")
    if kind == "cuda" and not torch.cuda.is_available():
        pytest.skip("--device=cuda: torch.cuda.is_available() is False on this machine")
    if kind == "xla":
        if find_spec("torch_xla") is None:
            pytest.skip("--device=xla: torch_xla is not installed")
        # by name: torch_xla has no wheel for most machines, and a type checker stops at its import
        xla: torch.device = import_module("torch_xla").device()
        return xla
    return torch.device(kind)


def _allowed(item: pytest.Item) -> frozenset[str]:
    allowed = frozenset(kind for mark in item.iter_markers("leaves") for kind in mark.args)
    if unknown := allowed - set(leak_check.KINDS):
        pytest.fail(f"mark leaves({', '.join(sorted(unknown))}): expected some of {', '.join(leak_check.KINDS)}")
    return allowed


@pytest.fixture(autouse=True)
def accel_testing_leak_check(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that leaves something behind has an error, and the next test starts clean and seeded."""
    allowed = _allowed(request.node)
    before = leak_check.process_state()
    with seeded(0):
        yield
    left = [sentence for kind, sentence in leak_check.clean_up(before).items() if kind not in allowed]
    if left:
        pytest.fail("the test left behind\n  " + "\n  ".join(left), pytrace=False)
