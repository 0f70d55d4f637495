"""Ranks of one machine find the memory that they share, and nobody else does."""

from __future__ import annotations

import errno
import functools
import gc
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import pytest
from accel_comm.transports.shared_memory import LONGEST, SLOTS, SharedMemoryChannel, map_shared_memory
from accel_testing import stretched
from shared_memory_channels import Lost, assert_arrives, gone, status_stores


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def no_descriptor_is_left() -> Iterator[None]:
    before = descriptors()
    yield
    assert descriptors() == before


class Meeting:
    """What the threads of a test tell each other, each for a rank; `change` is made to the place that rank 0 tells."""

    def __init__(self, size: int, change: Callable[[list[str]], list[str]] = list) -> None:
        self.size, self.change = size, change
        self.told: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=stretched(20))

    def all_gather(self, rank: int, note: Any) -> list[Any]:
        self.told[rank] = self.change(note) if note and isinstance(note, list) else note
        self.barrier.wait()
        found = list(self.told)
        self.barrier.wait()
        return found


def shared(
    hosts: list[str], change: Callable[[list[str]], list[str]] = list, unwanted: int | None = None
) -> list[mmap.mmap | None]:
    """What each rank has that runs on such a host."""
    size = len(hosts)
    meeting = Meeting(size, change)

    def memory_of(rank: int) -> mmap.mmap | None:
        tell = functools.partial(meeting.all_gather, rank)
        return map_shared_memory(rank, size, hosts[rank], tell, wanted=rank != unwanted)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(memory_of, range(size)))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_ranks_that_share_memory_hear_each_other(size: int, no_descriptor_is_left: None) -> None:
    every = []
    for store, memory in zip(status_stores(size), shared(["here"] * size), strict=True):
        assert memory is not None
        every.append(SharedMemoryChannel(memory, store, size, limit_s=5, lost=Lost))
    assert_arrives(every, [(None, [10, LONGEST, 0, 1])] * (2 * SLOTS), set())


def test_memory_that_is_in_use_is_found_by_nobody_else() -> None:
    paths = list[str]()

    def note(place: list[str]) -> list[str]:
        paths.append(place[1])
        return place

    assert None not in shared(["here"] * 2, note)
    with pytest.raises(FileNotFoundError):
        open(paths[0], "rb").close()


def test_two_runs_of_a_machine_do_not_share() -> None:
    (first,), (second,) = shared(["here"]), shared(["here"])
    assert first is not None
    assert second is not None
    assert first[:64] != second[:64]


def test_a_system_without_nameless_files_shares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    assert shared(["here"] * 3) == [None] * 3


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_if_one_rank_does_not_want_it_none_shares(rank: int, no_descriptor_is_left: None) -> None:
    """`ACCEL_SHARED_MEMORY=0` in the environment of one."""
    assert shared(["here"] * 3, unwanted=rank) == [None] * 3


@pytest.mark.parametrize("where", ["os.memfd_create", "os.posix_fallocate", "mmap.mmap"])
def test_where_there_is_no_room_nothing_is_shared(
    where: str, no_descriptor_is_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(where, full)
    assert shared(["here"] * 2) == [None, None]


@pytest.mark.parametrize("what", ["host", "token", "process", "short file", "folder", "device"])
def test_a_note_that_leads_nowhere_is_not_followed(what: str, no_descriptor_is_left: None, tmp_path: Path) -> None:
    def wrong(place: list[str]) -> list[str]:
        host, path, token = place
        (tmp_path / "short").write_bytes(bytes.fromhex(token))
        return {
            "host": [host + " elsewhere", path, token],
            "token": [host, path, "00" * 16],
            "process": [host, f"/proc/{gone()}/fd/3", token],
            "short file": [host, str(tmp_path / "short"), token],
            "folder": [host, str(tmp_path), token],
            "device": [host, "/dev/null", token],
        }[what]

    assert shared(["here"] * 2, wrong) == [None, None]


@pytest.mark.parametrize("outsider", [0, 1, 2])
def test_with_one_on_another_machine_nobody_shares(outsider: int, no_descriptor_is_left: None) -> None:
    assert shared(["elsewhere" if rank == outsider else "here" for rank in range(3)]) == [None] * 3
