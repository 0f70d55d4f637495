"""T4: processes that do not do the same end with one report that says who was where."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import disagree
import pytest
from accel_testing import stretched
from jobs import ACCEL, TORCHRUN, Ended, line_of, start
from suite.soak import in_soak

SCRIPT = Path(disagree.__file__)
#: programs that raise on every rank, and those that the watchdog ends
RAISE = ("order", "shape")
RAISE_TOO = ("barrier_in_else", "objects", "gather_alone", "dtype", "early_break", "large")
#: seconds from the start of the launcher to its end, which are fewer than ten: imports of torch, limit
BOUND_S = stretched(90.0)

Jobs = Callable[[str, str], Ended]


def ended(python: str, name: str, by: str) -> Ended:
    return start(SCRIPT, name, by=ACCEL if by == "accel" else TORCHRUN, python=python).end()


@pytest.fixture(scope="module")
def jobs(forking_python: str) -> Jobs:
    """Runs a program when a test first asks for it."""
    return cache(partial(ended, forking_python))


def check(done: Ended, name: str) -> None:
    assert done.seconds < BOUND_S, done.err
    assert done.code != 0
    for rank in range(2):
        assert any(f"rank {rank}" in row and f"{line_of(SCRIPT, f'{name} {rank}')}" in row for row in lines(done)), (
            f"rank {rank} and {line_of(SCRIPT, f'{name} {rank}')} are not in\n{done.err}"
        )
    assert done.left() == []


def lines(done: Ended) -> list[str]:
    return [row.split("]: ")[-1] for row in done.err.splitlines() if "rank " in row and ' File "' not in row]


@pytest.mark.parametrize("name", [*RAISE, *in_soak(*RAISE_TOO)])
def test_ranks_that_call_what_does_not_fit_are_told_so_at_once(name: str, jobs: Jobs) -> None:
    """T4, fault test 31: an error on each rank, with the operation and the line of all."""
    done = jobs(name, "accel")
    check(done, name)
    assert done.code == 1
    assert "CollectiveMismatch" in done.err or "ShapeMismatch" in done.err
    assert "is its limit" not in done.err, "found only by the limit"


@pytest.mark.parametrize("name", ["sleep", *in_soak("loader")])
def test_a_rank_that_does_not_come_is_told_with_its_line_at_the_limit(name: str, jobs: Jobs) -> None:
    """T4: one report, and not one from each rank."""
    done = jobs(name, "accel")
    check(done, name)
    assert done.code == 70
    assert done.err.count("is its limit") == 1
    assert "Traceback" not in done.err


def test_ranks_that_use_different_parameters_are_told_before_the_limit(jobs: Jobs) -> None:
    """Where no size is compared, as with NCCL, and only the rank that has used others than before asks."""
    done = jobs("branches", "accel")
    check(done, "branches")
    assert done.code == 70
    assert "find_unused_parameters=True" in done.err
    assert "is its limit" not in done.err


def test_a_rank_that_ends_early_is_told(jobs: Jobs) -> None:
    """T4: `break` of one rank, whose script then ends without another exchange."""
    check(jobs("break_to_the_end", "accel"), "break_to_the_end")


@pytest.mark.parametrize("name", ["gather_alone", *in_soak("sleep")])
def test_torchrun_has_the_same_report(name: str, jobs: Jobs) -> None:
    """T4, and its note: under another launcher the ranks report what they can."""
    check(jobs(name, "torchrun"), name)
