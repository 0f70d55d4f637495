"""The launcher at a terminal."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

COUNT_INTERRUPTS = """\
import os, signal, time
count = 0
def note(number, frame):
    global count
    count += 1
signal.signal(signal.SIGINT, note)
rank = os.environ["RANK"]
open("ready-" + rank, "w").close()
until = time.monotonic() + 60
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
        until_s = time.monotonic() + 60
        while len(list(tmp_path.glob("ready-*"))) < 2 and time.monotonic() < until_s:
            time.sleep(0.01)
        os.write(ours, b"\x03")
        assert launcher.wait(timeout=60) == 0
    os.close(ours)
    assert [(tmp_path / f"count-{rank}").read_text() for rank in range(2)] == ["1", "1"]


def test_what_nohup_ignores_stays_ignored(tmp_path: Path, silent_environ: Mapping[str, str]) -> None:
    (tmp_path / "wait.py").write_text("import time; open('ready', 'w').close(); time.sleep(1)")
    with subprocess.Popen(
        ["nohup", sys.executable, "-m", "accel_launch", "launch", "-n", "2", "wait.py"],
        cwd=tmp_path,
        env=silent_environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as launcher:
        until_s = time.monotonic() + 60
        while not (tmp_path / "ready").exists() and time.monotonic() < until_s:
            time.sleep(0.01)
        os.kill(launcher.pid, signal.SIGHUP)
        _, err = launcher.communicate(timeout=60)
    assert launcher.returncode == 0
    assert "accel" not in err
