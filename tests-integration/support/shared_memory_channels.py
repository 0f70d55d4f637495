"""Shared memory channels of several ranks in one process, and those of runs."""

import gc
import hashlib
import mmap
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import Any

from accel_comm.status_store import StatusStore
from accel_comm.transports import shared_memory
from accel_comm.transports.shared_memory import LONGEST, SharedMemoryChannel
from accel_comm.transports.torch_dist import TorchDist
from accel_state import RunRequest, acquire
from accel_testing import stretched
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore

#: seconds within which one who waits in vain must have heard of it
SOON_S = stretched(20.0)
LENGTHS = st.sampled_from([0, 1, LONGEST - 1, LONGEST]) | st.integers(0, 300) | st.integers(0, LONGEST)
#: who is heard: one rank, or all
SOURCES = st.none() | st.integers(0, 3)
Plan = list[tuple[int | None, list[int]]]


class Lost(Exception):
    """What a wait in vain raises here."""


class Clock:
    """In place of the module `time`: time passes in sleeps only, and each of them does `step`."""

    def __init__(self, step: Callable[[], None] = lambda: None) -> None:
        self.now, self.naps, self.step = 0.0, list[float](), step

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 1e-5)
        self.naps.append(seconds)
        self.step()


def status_stores(size: int) -> list[StatusStore]:
    store = HashStore()
    return [StatusStore(store, rank) for rank in range(size)]


def channels(size: int, limit_s: float = 5.0, on: list[StatusStore] | None = None) -> list[SharedMemoryChannel]:
    memory = mmap.mmap(-1, shared_memory._length(size))
    return [SharedMemoryChannel(memory, store, size, limit_s=limit_s, lost=Lost) for store in on or status_stores(size)]


@cache
def gone() -> int:
    """The id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


def message(rank: int, number: int, length: int) -> bytes:
    return random.Random(100 * number + rank).randbytes(length)


def tell(channel: SharedMemoryChannel, content: bytes = b"") -> None:
    """A round in which this rank reads nothing."""
    channel.post(content)
    channel.done()


def hear(channel: SharedMemoryChannel, source: int = 0) -> bytes:
    """A round in which this rank reads one other, and has nothing to say."""
    channel.post(b"header")
    found = channel.read(source)
    channel.done()
    return found


def channel_of(transport: Any) -> SharedMemoryChannel | None:
    found: SharedMemoryChannel | None = transport._channel
    return found


def joined() -> TorchDist:
    """The transport of a run, after two exchanges."""
    transport = acquire(RunRequest(cpu=True)).transport
    assert isinstance(transport, TorchDist)
    transport.barrier()
    transport.barrier()
    return transport


def shared_memories() -> int:
    gc.collect()
    found = 0
    for one in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found += "accel-shared-memory" in os.readlink(f"/proc/self/fd/{one}")
    return found


def digest(content: bytes) -> str:
    return f"{len(content)} {hashlib.sha256(content).hexdigest()}"


def take_part(
    channel: SharedMemoryChannel, rank: int, size: int, plan: Plan, slow: set[tuple[int, int]]
) -> list[list[bytes]]:
    """What this rank reads in each round; it lags in those that `slow` has."""
    found = []
    for number, (source, lengths) in enumerate(plan):
        sources = range(size) if source is None else [source % size]
        channel.post(message(rank, number, lengths[rank]) if rank in sources else b"")
        if (rank, number) in slow:
            time.sleep(0.001)
        found.append([channel.read(other) for other in sources if other != rank])
        channel.done()
    return found


def assert_arrives(every: list[SharedMemoryChannel], plan: Plan, slow: set[tuple[int, int]]) -> None:
    size = len(every)
    with ThreadPoolExecutor(size) as pool:
        parts = [pool.submit(take_part, channel, rank, size, plan, slow) for rank, channel in enumerate(every)]
        found = [part.result() for part in parts]
    for rank, rounds in enumerate(found):
        for number, ((source, lengths), heard) in enumerate(zip(plan, rounds, strict=True)):
            others = [other for other in (range(size) if source is None else [source % size]) if other != rank]
            assert heard == [message(other, number, lengths[other]) for other in others]
