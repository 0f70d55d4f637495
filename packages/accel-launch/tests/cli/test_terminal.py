"""The launcher at a terminal."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from accel_testing import stretched

COUNT_INTERRUPTS = """\
import os, signal, time
count = 0
def note(number, frame):
    global count
    count += 1
signal.signal(signal.SIGINT, note)
rank = os.environ["RANK"]
open("ready-" + rank, "w").close()
until = time.monotonic() + 600
while count == 0 and time.monotonic() < until:
    time.sleep(0.02)
time.sleep(0.3)
open("count-" + rank, "w").write(str(count))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who sent a signal")
def test_ctrl_c_interrupts_each_process_exactly_once(tmp_path: Path, silent_environ: Mapping[str, str]) -> None:
    (tmp_path / "count.py").write_text(COUNT_INTERRUPTS)
    ours, theirs = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "accel_launch", "launch", "-n", "2", "count.py"],
        cwd=tmp_path,
        env=silent_environ,
        preexec_fn=lambda: os.login_tty(theirs),
        pass_fds=(theirs,),
    ) as launcher:
        os.close(theirs)
        until_s = time.monotonic() + stretched(60)
        while len(list(tmp_path.glob("ready-*"))) < 2 and time.monotonic() < until_s:
            time.sleep(0.01)
        os.write(ours, b"\x03")
        assert launcher.wait(timeout=stretched(60)) == 0
    os.close(ours)
    assert [(tmp_path / f"count-{rank}").read_text() for rank in range(2)] == ["1", "1"]


SAVES = """\
import os, signal, sys, time
rank = os.environ["RANK"]
def save(number, frame):
    open("saved-" + rank, "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
open("ready-" + rank, "w").close()
until = time.monotonic() + 600
while not os.path.exists("on") and time.monotonic() < until:
    time.sleep(0.02)
open("done-" + rank, "w").close()
"""


def written(folder: Path, name: str) -> bool:
    """Whether both ranks write a file of that name in the time that they have."""
    until_s = time.monotonic() + stretched(60)
    while len(list(folder.glob(f"{name}-*"))) < 2 and time.monotonic() < until_s:
        time.sleep(0.01)
    return len(list(folder.glob(f"{name}-*"))) == 2


def test_under_nohup_the_end_of_the_terminal_ends_nothing(tmp_path: Path, silent_environ: Mapping[str, str]) -> None:
    (tmp_path / "save.py").write_text(SAVES)
    ours, theirs = os.openpty()
    with subprocess.Popen(
        ["nohup", sys.executable, "-m", "accel_launch", "launch", "-n", "2", "save.py"],
        cwd=tmp_path,
        env=silent_environ,
        preexec_fn=lambda: os.login_tty(theirs),
        pass_fds=(theirs,),
    ) as launcher:
        os.close(theirs)
        assert written(tmp_path, "ready")
        os.close(ours)  # the kernel sends SIGHUP to the launcher and to its group
        os.kill(launcher.pid, signal.SIGHUP)
        (tmp_path / "on").touch()
        assert launcher.wait(timeout=stretched(60)) == 0
    assert written(tmp_path, "done")
    assert "accel" not in (tmp_path / "nohup.out").read_text()


def test_an_interrupt_that_was_ignored_ends_nothing_and_sigterm_all(
    tmp_path: Path, silent_environ: Mapping[str, str]
) -> None:
    """As a shell in a script starts what is in the background; after SIGTERM each process has the time to save."""
    (tmp_path / "save.py").write_text(SAVES)
    with subprocess.Popen(
        [sys.executable, "-m", "accel_launch", "launch", "-n", "2", "save.py"],
        cwd=tmp_path,
        env=silent_environ,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
    ) as launcher:
        assert written(tmp_path, "ready")
        os.killpg(launcher.pid, signal.SIGINT)
        launcher.send_signal(signal.SIGINT)
        launcher.send_signal(signal.SIGTERM)
        _, err = launcher.communicate(timeout=stretched(60))
    assert launcher.returncode == 0, err
    assert "ended by SIGTERM from outside" in err
    assert written(tmp_path, "saved")
