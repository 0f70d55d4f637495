"""The signals of a session that was started by `nohup`, cron or a CI system."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from accel_testing import stretched

pytest_plugins = ["pytester"]

IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM)
LOOKS = """
import os, signal, subprocess, sys
NUMBERS = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM)
SHOWN = "import signal; print(*[str(signal.getsignal(one)) for one in map(int, sys.argv[1:])], sep=chr(10))"
def of_rank():
    return [signal.getsignal(number) for number in NUMBERS]
def test_own():
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert [signal.getsignal(number) for number in NUMBERS[2:]] == [signal.SIG_DFL] * 2
    os.kill(os.getpid(), signal.SIGHUP)
def test_program():
    command = [sys.executable, "-c", "import sys; " + SHOWN, *map(str, map(int, NUMBERS))]
    interrupt, *others = subprocess.check_output(command, text=True).splitlines()
    assert "default_int_handler" in interrupt
    assert others == [str(signal.SIG_DFL)] * 3
def test_rank(world):
    ((interrupt, *others),) = world(1, join=False).run(of_rank)
    assert interrupt is signal.default_int_handler
    assert others == [signal.SIG_DFL] * 3
"""


def ignore() -> None:
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)


@pytest.mark.parametrize("workers", [(), ("-n", "1", "-k", "not rank")], ids=["alone", "xdist"])
def test_a_session_whose_signals_were_ignored_has_the_defaults(
    workers: tuple[str, ...], pytester: pytest.Pytester
) -> None:
    """In its tests, in their programs and in the ranks of pools; and a hangup still does not end it.

    A worker of xdist has pools as a session alone has them: its ranks are left out.
    """
    if workers:
        pytest.importorskip("xdist")
    pytester.makepyfile(LOOKS)
    command = [sys.executable, "-m", "pytest", "-p", "accel_testing", *workers]
    done = subprocess.run(
        command, preexec_fn=ignore, capture_output=True, text=True, check=False, timeout=stretched(100)
    )
    assert f"{2 if workers else 3} passed" in done.stdout, done.stdout + done.stderr
