"""The one fork server of a session."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path

# DDP's first use imports torch._dynamo, FSDP2's torch.distributed.fsdp: seconds in each fresh worker
_PRELOAD = ("pytest", "torch._dynamo", "torch.distributed.fsdp", "torch.nn.parallel", "accel_testing.worker")


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def fork_server(preload: Sequence[str]) -> ForkServerContext:
    """A context whose processes are forked from a server; the first call starts it, with torch and `preload` imported.

    The server leaves out, without a word, what it cannot import: its processes import it, or fail, themselves.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*_PRELOAD, *preload])
    # the server skips, without a word, a preload module that it cannot import, and Python 3.11 does not give it our
    # sys.path (python/cpython#117378): hand it on. OpenMP with one thread: a fork copies no other thread
    ours = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join(dict.fromkeys(os.path.abspath(entry) for entry in [*sys.path, ours]))
    with _environment({"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}):
        forkserver.ensure_running()
    return context
