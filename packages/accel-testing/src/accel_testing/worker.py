"""Run a worker: join its group, answer calls, leave."""

from __future__ import annotations

import ctypes
import faulthandler
import multiprocessing
import os
import pickle
import signal
import sys
from datetime import timedelta
from multiprocessing import forkserver
from multiprocessing.connection import Connection

from accel_testing.import_by_path import ensure_module
from accel_testing.message import STOP, Call, pack_done, pack_failed
from accel_testing.seeds import seed
from accel_testing.worker_spec import WorkerSpec

# longer than any test: a hang is found by ProcessPool, which shows stacks, and not by the process group
GROUP_TIMEOUT = timedelta(hours=1)
PR_SET_PDEATHSIG = 1


def _set_up(spec: WorkerSpec) -> None:
    # a session of its own: killing the group kills a DataLoader's workers too, and Ctrl-C is the test's to handle
    os.setsid()
    if sys.platform == "linux":
        # a hanging worker must not outlive a test session that was killed: the kernel kills it with its server, and
        # the server ends when nobody but itself holds this pipe, of which every child gets an end
        alive = vars(forkserver._forkserver).get("_forkserver_alive_fd")
        if alive is not None:
            os.close(alive)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    output = os.open(spec.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    sys.stdout, sys.stderr = (
        os.fdopen(fd, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False) for fd in (1, 2)
    )
    faulthandler.enable()
    # it stays open as long as the process
    faulthandler.register(signal.SIGUSR1, file=open(spec.stacks, "w"), all_threads=True)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(spec.environ)
    # the default here would start one more, cold, fork server for each DataLoader
    multiprocessing.set_start_method("fork", force=True)


def _prepare(spec: WorkerSpec) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if spec.join:
        store = f"file://{spec.folder / 'joined'}"
        dist.init_process_group("gloo", init_method=store, rank=spec.rank, world_size=spec.size, timeout=GROUP_TIMEOUT)
    seed(0)


def _answer(message: bytes) -> bytes:
    try:
        call: Call = pickle.loads(message)
        for name, source in call.sources.items():
            ensure_module(name, source)
        function, args = pickle.loads(call.body)
        return pack_done(function(*args))
    except BaseException as error:  # noqa: BLE001 - whatever a rank raises, sys.exit too, is the test's to see
        if error.__traceback__ is not None:
            error = error.with_traceback(error.__traceback__.tb_next)
        return pack_failed(error)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _leave() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def serve(spec: WorkerSpec, pipe: Connection) -> None:
    """Answer every call that comes through a pipe, until STOP or the end of the pipe.

    A failure to join the process group is the first answer, and the last.

    Args:
        spec: Rank, files and environment of this worker.
        pipe: Connection to the test.
    """
    _set_up(spec)
    try:
        _prepare(spec)
    except BaseException as error:  # noqa: BLE001 - as above
        pipe.send_bytes(pack_failed(error))
        return
    while True:
        try:
            message = pipe.recv_bytes()
        except EOFError:
            break
        if message == STOP:
            break
        pipe.send_bytes(_answer(message))
    _leave()
