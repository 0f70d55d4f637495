"""T26: who waits for the main process waits as long as it lives; and what waits without a fault is not disturbed."""

import os
import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path

import main_first
import pytest
from accel_comm import PeerFailed
from accel_state import PartialState
from accel_testing import MakePool, RankFailure, stretched
from jobs import ACCEL, SOON_S, TORCHRUN, Ended, line_of, start, start_by_hand
from suite.soak import in_soak

SCRIPT = Path(main_first.__file__)


Jobs = Callable[..., Ended]


@pytest.fixture(scope="module")
def jobs(request: pytest.FixtureRequest, forking_python: str) -> Jobs:
    """Runs a job of an accel launcher, or of torchrun, when a test first asks for it."""
    whole = request.config.getoption("--soak") and request.config.getoption("--soak-slice") is None
    work = 60 if whole else 5
    seconds = {"works": work, "nested": work, "gathers": 60, "machines": 3}

    def job(kind: str, size: int = 2) -> Ended:
        by, number = (TORCHRUN if kind == "machines" else ACCEL), seconds.get(kind, size)
        return start(SCRIPT, kind, number, size=size, by=by, python=forking_python).end(stretched(300))

    return cache(job)


def check(done: Ended, printed: list[str]) -> None:
    assert done.code == 0, done.err
    assert done.err == ""
    assert sorted(done.out.splitlines()) == sorted(printed)


# Has found the BUG of test_ranks_that_end_while_one_looks_end_well, in about one run of twenty.
@pytest.mark.soak
def test_long_work_of_the_main_process_trips_no_limit(jobs: Jobs) -> None:
    """T26: a limit of 3 s and work of 5 s, or of 60 s in a soak; in both kinds of block, and in nested ones."""
    done = jobs("works")
    check(done, ["first", "later"] * 2 + ["sum 2"] * 2)
    assert done.out.startswith("first\n")
    done = jobs("nested")
    check(done, ["first", "later"])
    assert done.out.startswith("first\n")


def test_the_failure_of_the_main_process_is_told_to_all_others(forking_python: str, tmp_path: Path) -> None:
    """T26, fault test 30."""
    jobs = start_by_hand(SCRIPT, "fails", "raises", tmp_path / "at", size=3, python=forking_python)
    first, *others = [job.end() for job in jobs]
    assert "KeyError: 'no such data set'" in first.err
    for one in others:
        assert (one.code, one.out) == (1, "")
        assert "PeerFailed: the process that had to go first failed: rank 0: KeyError: 'no such data set'" in one.err


def test_the_death_of_the_main_process_is_known_to_all_others(forking_python: str, tmp_path: Path) -> None:
    """T26: soon, without a launcher, where the store is gone with the main process."""
    jobs = start_by_hand(SCRIPT, "fails", "killed", tmp_path / "at", size=3, python=forking_python)
    first, *others = [job.end() for job in jobs]
    assert first.code == -signal.SIGKILL
    for one in others:
        assert (one.code, one.out) == (1, "")
        assert one.at - float((tmp_path / "at").read_text()) < SOON_S
        assert "PeerFailed: rank 0, or the process that serves the store, is gone" in one.err
        assert "direct cause" not in one.err


def test_the_death_of_the_main_process_ends_a_launched_job(forking_python: str, tmp_path: Path) -> None:
    """T26, T14."""
    done = start(SCRIPT, "fails", "killed", tmp_path / "at", size=3, python=forking_python).end()
    assert (done.code, done.out) == (128 + signal.SIGKILL, "")
    assert done.at - float((tmp_path / "at").read_text()) < SOON_S
    assert done.left() == []


def dies() -> None:
    state = PartialState(cpu=True)
    with state.main_process_first():
        if state.is_main_process:
            os.kill(os.getpid(), signal.SIGKILL)


def test_the_death_of_the_main_process_is_seen_where_the_store_lives_on(world: MakePool) -> None:
    """T26: a store in a file, or torchrun's."""
    with pytest.raises(RankFailure) as failure:
        world(3).run(dies)
    errors = failure.value.errors
    assert isinstance(errors[0], ChildProcessError)
    for rank in (1, 2):
        assert isinstance(errors[rank], PeerFailed)
        assert str(errors[rank]) == "rank 0, for which others wait, is gone"


@pytest.mark.parametrize("size", [2, *in_soak(3)])
def test_an_exchange_of_the_main_process_alone_is_found(size: int, jobs: Jobs) -> None:
    """T26, T4: all wait for each other, and each is named with its line."""
    done = jobs("gathers", size)
    assert done.code == 70
    assert "all ranks wait for each other" in done.err, done.err
    assert f"in gather at {line_of(SCRIPT, 'gathers first')} " in done.err
    for rank in range(1, size):
        waits = [row for row in done.err.splitlines() if row.startswith(f"  rank {rank} has been waiting for")]
        assert any(
            f"in main_process_first (after rank 0) at {line_of(SCRIPT, 'gathers later')} " in row for row in waits
        )


def test_a_machine_that_is_done_does_not_end_the_work_of_another(jobs: Jobs) -> None:
    """T26: `local_main_process_first`, two machines, as far as one can have two."""
    done = jobs("machines", 4)
    assert done.code == 0, done.err
    assert done.out.split() == ["done"] * 4


@pytest.mark.parametrize("size", [3, *in_soak(2, 4)])
def test_slow_ranks_raise_no_alarm(size: int, jobs: Jobs) -> None:
    """Fault test 34: 200 exchanges of five kinds, with small pauses and one that is looked into."""
    check(jobs("calm", size), ["calm"] * size)
