"""A job that failed is started again: as often as it may since the last checkpoint, and not if it was to end."""

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from accel_testing import stretched

Start = Callable[..., "subprocess.Popen[str]"]
Run = Callable[..., "subprocess.CompletedProcess[str]"]

SCRIPT = """
import os, sys, pathlib, signal, time
rank, attempt = os.environ.get("RANK", "0"), int(os.environ["ACCEL_ATTEMPT"])
pathlib.Path(f"at-{rank}-{attempt}").touch()
fails, progresses, how = int(sys.argv[1]), [int(one) for one in sys.argv[2].split(",") if one], sys.argv[3]
if attempt in progresses and rank == "0":
    (pathlib.Path(os.environ["ACCEL_FLIGHT_RECORDER"]) / "progress").touch()
    time.sleep(0.2)
while len(list(pathlib.Path().glob(f"at-*-{attempt}"))) < int(os.environ.get("WORLD_SIZE", "1")):
    time.sleep(0.01)
if attempt < fails and rank == os.environ.get("FAILS", "0"):
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(int(how))
if how == "waits":
    time.sleep(30)
"""


@pytest.fixture
def accel(accel_program: Run) -> Run:
    """Runs `accel` as a program of its own, since it starts jobs here."""
    return accel_program


@pytest.fixture(autouse=True)
def script(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)


def attempts(folder: Path, rank: int = 0) -> int:
    return len(list(folder.glob(f"at-{rank}-*")))


@pytest.mark.parametrize(("processes", "how"), [(1, "3"), (2, "killed")])
def test_a_job_goes_on_after_a_failure(processes: int, how: str, accel: Run, tmp_path: Path) -> None:
    done = accel("launch", "--cpu", "-n", str(processes), "--max_restarts", "2", "script.py", "1", "", how)
    assert done.returncode == 0, done.stderr
    assert [attempts(tmp_path, rank) for rank in range(processes)] == [2] * processes
    assert "starts again in 1 s (1 of 2 times)" in done.stderr


def test_no_restarts_can_be_asked_for(accel: Run, tmp_path: Path) -> None:
    assert accel("launch", "--cpu", "-n", "2", "--max_restarts", "0", "script.py", "1", "", "3").returncode == 3
    assert attempts(tmp_path) == 1


def test_one_that_fails_every_time_is_given_up_with_its_code(accel: Run, tmp_path: Path) -> None:
    done = accel("launch", "--cpu", "-n", "2", "--max_restarts", "1", "script.py", "9", "", "3")
    assert (done.returncode, attempts(tmp_path)) == (3, 2)
    assert done.stderr.count("rank 0 of 2") == 2


def test_failures_are_counted_since_the_last_checkpoint(accel: Run, tmp_path: Path) -> None:
    done = accel("launch", "--cpu", "-n", "1", "--max_restarts", "1", "script.py", "3", "0,1,2", "3")
    assert (done.returncode, attempts(tmp_path)) == (0, 4)
    assert "1 of 1 times" in done.stderr
    done = accel("launch", "--cpu", "-n", "1", "--max_restarts", "1", "script.py", "3", "1", "3")
    assert done.returncode == 3


@pytest.mark.parametrize("processes", [1, 2])
def test_one_that_stopped_on_request_is_not_started_again(processes: int, accel: Run, tmp_path: Path) -> None:
    done = accel("launch", "--cpu", "-n", str(processes), "--max_restarts", "2", "script.py", "1", "", "75")
    assert (done.returncode, attempts(tmp_path)) == (75, 1)
    assert "run the same command again" in done.stderr


def test_one_that_was_ended_from_outside_is_not_started_again(start: Start, tmp_path: Path) -> None:
    process = start("launch", "--cpu", "-n", "2", "--max_restarts", "2", "script.py", "0", "", "waits")
    until = time.time() + stretched(60)
    while attempts(tmp_path) == 0 and time.time() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=stretched(60))
    assert process.returncode == 143
    assert attempts(tmp_path) == 1
    assert "starts again" not in err
