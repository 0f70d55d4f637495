"""T14: when one process fails the whole job is gone in seconds, and says why."""

import signal
import sys
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import lost
import pytest
from jobs import SOON_S, Ended, line_of, marked, start, start_by_hand
from suite.soak import in_soak

SCRIPT = Path(lost.__file__)
CODES = {"raises": 1, "killed": 128 + signal.SIGKILL, "exits": 3}
WHERE = ("reduce", "barrier", "data")

Lost = tuple[Ended, float]
Jobs = Callable[[str, str], Lost]


def ended(folder: Path, forking: str, how: str, where: str) -> Lost:
    """The job's end, and how many seconds it came after the failure of rank 1."""
    file = folder / f"{how}-{where}"
    # a stub stands for a process that has its own end only: what a killed one, its peer and workers leave needs Python
    python = forking if how in ("raises", "exits") and where != "workers" else sys.executable
    done = start(SCRIPT, how, where, file, python=python).end()
    return done, done.at - float(file.read_text())


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory, forking_python: str) -> Jobs:
    """Runs the job of a kind when a test first asks for it."""
    return cache(partial(ended, tmp_path_factory.mktemp("lost"), forking_python))


@pytest.mark.grid(1)
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("how", CODES)
def test_the_job_is_gone_when_one_process_is(how: str, where: str, jobs: Jobs) -> None:
    """T14, fault test 30: soon, with the exit code of the one that failed."""
    done, seconds = jobs(how, where)
    assert done.code == CODES[how], done.err
    assert seconds < SOON_S
    assert done.left() == []
    assert "rank 1 of 2" in done.err
    assert "rank 0 of 2" not in done.err


@pytest.mark.parametrize("where", ["reduce", *in_soak("barrier", "data")])
def test_the_first_traceback_is_that_of_the_one_that_raised(where: str, jobs: Jobs) -> None:
    """T14."""
    done, _ = jobs("raises", where)
    first = next(row for row in done.err.splitlines() if "Traceback" in row)
    assert first.startswith("[rank1]"), done.err
    assert "[rank1]: LookupError: the sample that nobody has" in done.err


def test_the_workers_of_a_loader_are_gone_too(jobs: Jobs) -> None:
    """T14, T36: the whole job."""
    done, _ = jobs("exits", "workers")
    assert done.code == 3
    until = time.monotonic() + SOON_S
    while done.left() and time.monotonic() < until:
        time.sleep(0.1)
    assert done.left() == []


def test_a_stopped_process_is_told_and_ended(jobs: Jobs) -> None:
    """Fault test 28: the limit ends a wait for a process that is stopped."""
    done, _ = jobs("stopped", "barrier")
    assert done.code == 70, done.err
    assert "is its limit" in done.err
    assert f"in wait_for_everyone at {line_of(SCRIPT, 'barrier')}" in done.err
    assert "\n  rank 1 does not answer" in done.err
    assert done.left() == []


def test_a_stopped_process_is_ended_soon_after_the_limit(jobs: Jobs) -> None:
    """T4: in a few seconds."""
    _, seconds = jobs("stopped", "barrier")
    assert seconds < lost.LIMIT_S + SOON_S


@pytest.mark.parametrize("how", ["killed", *in_soak("exits")])
def test_without_a_launcher_a_peer_says_by_itself_what_it_has_lost(
    how: str, forking_python: str, tmp_path: Path
) -> None:
    """T14, fault test 29: `PeerLost`, with the exchange and the line."""
    first, second = start_by_hand(SCRIPT, how, "reduce", tmp_path / "at", python=forking_python)
    done = first.end()
    assert done.at - float((tmp_path / "at").read_text()) < SOON_S
    assert second.end().code == {"killed": -signal.SIGKILL, "exits": 3}[how]
    assert done.code == 1
    assert "PeerLost: rank 0 waits in reduce" in done.err
    assert f"at {line_of(SCRIPT, 'reduce')}" in done.err
    assert marked(first.mark) == []


@pytest.mark.parametrize("how", ["killed", *in_soak("exits")])
def test_what_gloo_says_of_a_lost_peer_is_no_traceback_of_its_own(
    how: str, forking_python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T14: as between machines, where messages go through gloo."""
    monkeypatch.setenv("ACCEL_SHARED_MEMORY", "0")
    first, second = start_by_hand(SCRIPT, how, "reduce", tmp_path / "at", python=forking_python)
    done = first.end()
    second.end()
    assert done.code == 1
    assert "PeerLost: rank 0 waits in reduce" in done.err
    assert done.err.count("Traceback") == 1
    assert "gloo/transport" not in done.err


def test_a_process_that_has_caught_the_loss_can_finish_its_work(forking_python: str, tmp_path: Path) -> None:
    """T14."""
    first, second = start_by_hand(SCRIPT, "exits", "caught", tmp_path / "at", python=forking_python)
    done = first.end()
    assert second.end().code == 3
    assert (done.code, done.out) == (0, "saved after PeerLost\n"), done.err
