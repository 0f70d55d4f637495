"""Restore the dispositions of signals at the start of a test session, whoever has started it."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

#: Python ignores these two itself, and gives the programs that it starts the defaults
_IGNORED_BY_PYTHON = {signal.SIGPIPE, signal.SIGXFSZ}


def restore_defaults() -> None:
    """Restore the defaults of signals that this process was started to ignore, for the programs of tests.

    `nohup`, cron, CI systems and shells in the background start programs with SIGINT or SIGHUP ignored, and an ignored
    signal stays ignored in all programs that those start. This process itself goes on after a SIGHUP, as `nohup`
    promises: it handles the signal, and a program that it starts has the default. Outside of the main thread nothing
    happens.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for number in signal.valid_signals() - _IGNORED_BY_PYTHON:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _INSTEAD.get(number, signal.SIG_DFL))
    if "PYTEST_XDIST_WORKER" in os.environ:
        # the controller has handled SIGHUP, so that this program has the default; it ends with the controller anyway
        signal.signal(signal.SIGHUP, _outlive)


def _outlive(number: int, frame: FrameType | None) -> None:
    """Do nothing at a hangup that this process was started to ignore."""


_INSTEAD = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: _outlive}
