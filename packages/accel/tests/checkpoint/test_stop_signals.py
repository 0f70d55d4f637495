"""Signals that ask a job to stop, also those that a process was started to ignore, as by nohup."""

import os
import signal
from collections.abc import Iterator

import pytest
from accel import Accelerator, ProjectConfiguration
from accel_testing import MakePool

NAMES = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1")


@pytest.fixture
def all_ignored() -> Iterator[None]:
    """As a process finds them that was started with all of these ignored."""
    before = {name: signal.signal(getattr(signal, name), signal.SIG_IGN) for name in NAMES}
    yield
    for name, handler in before.items():
        signal.signal(getattr(signal, name), handler)


@pytest.mark.parametrize("name", NAMES)
def test_only_signals_of_a_terminal_stay_ignored(name: str, all_ignored: None) -> None:
    """A scheduler's are a request, also if a shell above ignores them in order to outlive them."""
    accelerator = Accelerator(cpu=True, project_config=ProjectConfiguration(stop_signals=(name,)))
    os.kill(os.getpid(), getattr(signal, name))
    assert accelerator.stop_requested() is (name in ("SIGTERM", "SIGUSR1"))


def test_a_signal_of_a_terminal_that_is_not_ignored_is_a_request() -> None:
    before = signal.getsignal(signal.SIGHUP)
    try:
        accelerator = Accelerator(cpu=True, project_config=ProjectConfiguration(stop_signals=("SIGHUP",)))
        os.kill(os.getpid(), signal.SIGHUP)
        assert accelerator.stop_requested()
    finally:
        signal.signal(signal.SIGHUP, before)


def answers() -> list[bool]:
    """Before and after a signal to rank 1."""
    accelerator = Accelerator(cpu=True)
    before = accelerator.stop_requested()
    if accelerator.process_index == 1:
        os.kill(os.getpid(), signal.SIGUSR1)
    return [before, accelerator.stop_requested()]


def test_a_signal_to_one_rank_is_a_request_to_all(world: MakePool) -> None:
    """T9."""
    assert world(2).run(answers) == [[False, True]] * 2
