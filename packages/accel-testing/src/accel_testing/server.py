"""Start the fork server of a session."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Sequence
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from unittest.mock import patch

# DDP's first use imports torch._dynamo, FSDP2's torch.distributed.fsdp: seconds in each fresh worker
_PRELOAD = ("pytest", "torch._dynamo", "torch.distributed.fsdp", "torch.nn.parallel", "accel_testing.worker")


def fork_server(preload: Sequence[str]) -> ForkServerContext:
    """Return a context whose processes are forked from a server that has imported torch and the modules of `preload`.

    The first call starts the server, and later calls cannot add modules. A module that cannot be imported is left out
    without a message.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*_PRELOAD, *preload, "accel_testing.last_preload"])
    # the server skips, without a word, a preload module that it cannot import, and Python 3.11 does not give it our
    # sys.path (python/cpython#117378): hand it on. OpenMP with one thread: a fork copies no other thread
    ours = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join(dict.fromkeys(os.path.abspath(entry) for entry in [*sys.path, ours]))
    with patch.dict(os.environ, {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}):
        forkserver.ensure_running()
    return context
