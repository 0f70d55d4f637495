"""The pytest plug-in: fixtures `world`, `device` and `cases`, options --device and --soak, and the police."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

import pytest

from accel_testing import police
from accel_testing.seeds import seeded
from accel_testing.world import MakeWorld, World

if TYPE_CHECKING:
    import torch


class Cases(Protocol):
    """How many cases a test tries: the first number, or the second with --soak."""

    def __call__(self, suite: int, soak: int) -> int: ...


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --device and --soak."""
    group = parser.getgroup("accel-testing")
    group.addoption(
        "--device", choices=["cpu", "cuda", "xla"], default="cpu", help="kind of device that fixture `device` gives"
    )
    group.addoption("--soak", action="store_true", help="tests that use fixture `cases` try many more of them")


def pytest_configure(config: pytest.Config) -> None:
    """Registers the markers; with --device=xla imports torch_xla, which changes `os.environ`, before any test."""
    kinds = ", ".join(police.KINDS)
    config.addinivalue_line("markers", f"leaves(*kinds): the test may leave these behind: {kinds}")
    config.addinivalue_line("markers", "soak: the test tries many more cases with --soak")
    config.addinivalue_line("markers", "device: the test uses the fixture `device`; given to it by the plug-in")
    if config.getoption("--device") == "xla" and find_spec("torch_xla") is not None:
        import_module("torch_xla")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests that run on any device, so that `-m device` chooses them."""
    for item in items:
        if isinstance(item, pytest.Function) and "device" in item.fixturenames:
            item.add_marker("device")


@pytest.fixture
def world() -> Iterator[MakeWorld]:
    """Makes worlds of fresh workers for this test, and closes them after it."""
    with ExitStack() as stack:

        def make(size: int, *, join: bool = True) -> World:
            return stack.enter_context(World(size, join=join))

        yield make


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
        found: torch.device = import_module("torch_xla").device()
        return found
    return torch.device(kind)


@pytest.fixture
def cases(request: pytest.FixtureRequest) -> Cases:
    """How many cases to try: the first number, or the second with --soak."""
    return lambda suite, soak: soak if request.config.getoption("--soak") else suite


def _allowed(item: pytest.Item) -> frozenset[str]:
    allowed = frozenset(kind for mark in item.iter_markers("leaves") for kind in mark.args)
    if unknown := allowed - set(police.KINDS):
        pytest.fail(f"mark leaves({', '.join(sorted(unknown))}): expected some of {', '.join(police.KINDS)}")
    return allowed


@pytest.fixture(autouse=True)
def accel_testing_police(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that leaves something behind has an error, and the next test starts clean and seeded."""
    allowed = _allowed(request.node)
    before = police.look()
    with seeded(0):
        yield
    left = [sentence for kind, sentence in police.put_right(before).items() if kind not in allowed]
    if left:
        pytest.fail("the test left behind\n  " + "\n  ".join(left), pytrace=False)
