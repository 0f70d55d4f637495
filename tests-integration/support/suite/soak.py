"""What the suite tries of a test, what a soak tries of it, and what a slice of a soak."""

from __future__ import annotations

import itertools
import random
import time
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from _pytest.mark.structures import ParameterSet

_ENDS_AT = pytest.StashKey[float]()


class Cases(Protocol):
    """The type of the fixture `cases`."""

    def __call__(self, suite: int, soak: int) -> range:
        """The numbers 0 to `suite` - 1, or to `soak` - 1 in a soak; in a slice, `suite` consecutive ones of those."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --soak, --soak-slice and --soak-seconds."""
    group = parser.getgroup("suite")
    group.addoption("--soak", action="store_true", help="run thorough tests too, and try all cases of `cases`")
    group.addoption(
        "--soak-slice", metavar="SEED", help="with --soak: run in an order, and on cases, that SEED chooses"
    )
    group.addoption(
        "--soak-seconds", type=float, default=150, metavar="N", help="with --soak-slice: begin no test after N seconds"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Registers the markers."""
    config.addinivalue_line(
        "markers", "soak(only=False): the test tries many more cases with --soak; if only, it runs with --soak alone"
    )
    config.addinivalue_line(
        "markers",
        "grid(strength): without --soak, the test runs on as few of its combinations of parameters as hold all values "
        "(strength 1), or all pairs of values (strength 2), of its parameters",
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Leaves out what only a soak runs, or shuffles what a slice chooses from."""
    rest = _thorough(items)
    for item in items:
        if id(item) in rest:
            item.add_marker("soak")
    if not config.getoption("--soak"):
        config.hook.pytest_deselected(items=[item for item in items if id(item) in rest])
        items[:] = [item for item in items if id(item) not in rest]
    yield
    seed: str | None = config.getoption("--soak-slice")
    if seed is not None:
        random.Random(seed).shuffle(items)


def _thorough(items: Sequence[pytest.Item]) -> set[int]:
    """The ids of the tests, and of the combinations of parameters, that only a soak runs."""
    rest: set[int] = set()
    grids: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if any(mark.kwargs.get("only") for mark in item.iter_markers("soak")):
            rest.add(id(item))
        elif isinstance(item, pytest.Function) and item.get_closest_marker("grid"):
            grids[item.nodeid.partition("[")[0]].append(item)
    for grid in grids.values():
        mark = grid[0].get_closest_marker("grid")
        strength: int = mark.args[0] if mark is not None else 1
        kept = covering([_rows(item) for item in grid], strength)
        rest |= {id(item) for number, item in enumerate(grid) if number not in kept}
    return rest


def _rows(item: pytest.Function) -> list[Hashable]:
    """What stands for the row that each `parametrize` of a test has given to it."""
    names = [mark.args[0] for mark in item.iter_markers("parametrize")]
    listed = [name.replace(" ", "").split(",") if isinstance(name, str) else name for name in names]
    return [tuple((name, id(item.callspec.params[name])) for name in row) for row in listed]


def covering(combinations: Sequence[Sequence[Hashable]], strength: int) -> set[int]:
    """The numbers of few combinations that hold each `strength` values that stand together in any of all of them."""
    groups = [set(itertools.combinations(values, min(strength, len(values)))) for values in combinations]
    missing: set[tuple[Hashable, ...]] = set().union(*groups)
    kept: set[int] = set()
    while missing:
        best = max(range(len(groups)), key=lambda number: len(groups[number] & missing))
        missing -= groups[best]
        kept.add(best)
    return kept


def in_soak(*values: object) -> list[ParameterSet]:
    """Values of a parameter that only a soak tries: `parametrize("size", [2, *in_soak(3, 8)])`."""
    return [pytest.param(value, marks=pytest.mark.soak(only=True)) for value in values]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what a slice has no time for; the time begins with the first test of this process."""
    if item.config.getoption("--soak-slice") is not None:
        seconds: float = item.config.getoption("--soak-seconds")
        if time.monotonic() > item.config.stash.setdefault(_ENDS_AT, time.monotonic() + seconds):
            pytest.skip(f"the {seconds:g} s of this slice are over")


@pytest.fixture
def cases(request: pytest.FixtureRequest) -> Cases:
    """Which cases to try: few in the suite, all in a soak, few others in a slice of a soak."""
    seed: str | None = request.config.getoption("--soak-slice")

    def chosen(suite: int, soak: int) -> range:
        if not request.config.getoption("--soak"):
            return range(suite)
        if seed is None:
            return range(soak)
        first = random.Random(f"{seed} {request.node.nodeid}").randint(0, max(0, soak - suite))
        return range(first, first + min(suite, soak))

    return chosen
