"""Fail tests that leave something behind in this process, and restore it: an autouse fixture, and the mark `leaves`."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Literal, get_args

import pytest
from accel_testing.time_limits import stretched
from accel_testing.worker_handle import NAME

Kind = Literal["environment", "threads", "group", "children"]
KINDS: tuple[Kind, ...] = get_args(Kind)

GRACE_S = 3.0
ROUNDS = 30  # of a collection and a short wait: on a busy machine a collection alone takes seconds
# pytest rewrites the first in every phase of a test; torch._inductor writes the others when it is first used
NOT_OURS = frozenset({"PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"})


@dataclass(frozen=True, slots=True)
class ProcessState:
    """The state of this process that tests share.

    Args:
        environ: `os.environ`, without variables that pytest and torch change.
        threads: Running threads that are no daemons.
        children: Processes of multiprocessing that run, without workers of pools.
        group: Whether the default process group is open.
    """

    environ: Mapping[str, str]
    threads: frozenset[threading.Thread]
    children: frozenset[BaseProcess]
    group: bool


def _environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in NOT_OURS}


def _threads() -> frozenset[threading.Thread]:
    return frozenset(thread for thread in threading.enumerate() if not thread.daemon)


def _children() -> frozenset[BaseProcess]:
    return frozenset(child for child in multiprocessing.active_children() if not child.name.startswith(NAME))


def _group() -> bool:
    if "torch.distributed" not in sys.modules:
        return False
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()


def process_state() -> ProcessState:
    """Return the state of this process as it is now."""
    return ProcessState(_environ(), _threads(), _children(), _group())


def _restore_environment(before: ProcessState) -> str | None:
    now = _environ()
    changes = [
        f"{name}: {before.environ.get(name, '(unset)')!r} became {now.get(name, '(unset)')!r}"
        for name in sorted(before.environ.keys() | now.keys())
        if before.environ.get(name) != now.get(name)
    ]
    if not changes:
        return None
    for name in now.keys() - before.environ.keys():
        del os.environ[name]
    os.environ.update(before.environ)
    return f"a changed environment (use monkeypatch.setenv): {'; '.join(changes)}"


def _wait_threads(before: ProcessState) -> str | None:
    deadline = time.monotonic() + stretched(GRACE_S)
    rounds = itertools.count()
    while (left := _threads() - before.threads) and (next(rounds) < ROUNDS or time.monotonic() < deadline):
        # an executor ends its threads when it is collected, and it can sit in a cycle
        gc.collect()
        next(iter(left)).join(timeout=0.05)
    names = sorted(thread.name for thread in _threads() - before.threads)
    return f"running threads (join them, or make them daemons): {', '.join(names)}" if names else None


def _close_group(before: ProcessState) -> str | None:
    if before.group or not _group():
        return None
    import torch.distributed as dist

    dist.destroy_process_group()
    return "an open default process group (call torch.distributed.destroy_process_group)"


def _kill_children(before: ProcessState) -> str | None:
    if not _children() - before.children:
        return None
    # an iterator of a DataLoader joins its workers when it is collected, and it can sit in a cycle
    gc.collect()
    deadline = time.monotonic() + stretched(GRACE_S)
    for child in _children() - before.children:
        child.join(timeout=max(0.0, deadline - time.monotonic()))
    left = _children() - before.children
    for child in left:
        child.kill()
        child.join()
    names = sorted(f"{child.name} (pid {child.pid})" for child in left)
    return f"child processes (join them): {', '.join(names)}" if names else None


_CHECKS: dict[Kind, Callable[[ProcessState], str | None]] = {
    "environment": _restore_environment,
    "threads": _wait_threads,
    "group": _close_group,
    "children": _kill_children,
}


def clean_up(before: ProcessState) -> dict[Kind, str]:
    """Restore an earlier state, except for threads, and return what differed.

    Returns:
        A sentence for each kind: a changed `os.environ`, a running thread that is no daemon, an open default process
        group, a process of multiprocessing. Threads and processes have some seconds to end, times the factor.
    """
    sentences = {kind: check(before) for kind, check in _CHECKS.items()}
    return {kind: sentence for kind, sentence in sentences.items() if sentence is not None}


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line("markers", f"leaves(*kinds): the test may leave these behind: {', '.join(KINDS)}")


def _allowed(item: pytest.Item) -> frozenset[str]:
    allowed = frozenset(kind for mark in item.iter_markers("leaves") for kind in mark.args)
    if unknown := allowed - set(KINDS):
        pytest.fail(f"mark leaves({', '.join(sorted(unknown))}): expected some of {', '.join(KINDS)}")
    return allowed


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Undo what a test leaves behind, except threads, and fail it for leaks that no mark allows."""
    allowed = _allowed(request.node)
    before = process_state()
    yield
    left = [sentence for kind, sentence in clean_up(before).items() if kind not in allowed]
    if left:
        pytest.fail("the test left behind\n  " + "\n  ".join(left), pytrace=False)
