"""Ranks of one machine find the memory that they share, and nobody else does."""

import errno
import gc
import mmap
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import pytest
from accel_state import PeerLost
from accel_state.status_store import StatusStore
from accel_state.transports.shared_memory import LONGEST, SLOTS, SharedMemoryChannel, map_shared_memory
from shared_memory_channels import Lost, assert_arrives, gone, status_stores


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def no_descriptor_is_left() -> Iterator[None]:
    before = descriptors()
    yield
    assert descriptors() == before


def shared(on: list[StatusStore], limit_s: float = 20.0) -> list[mmap.mmap | None]:
    with ThreadPoolExecutor(len(on)) as pool:
        return list(pool.map(lambda store: map_shared_memory(store, len(on), limit_s), on))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_ranks_that_share_memory_hear_each_other(size: int, no_descriptor_is_left: None) -> None:
    on = status_stores(size)
    every = []
    for store, memory in zip(on, shared(on), strict=True):
        assert memory is not None
        every.append(SharedMemoryChannel(memory, store, size, limit_s=5, lost=Lost))
    assert_arrives(every, [(None, [10, LONGEST, 0, 1])] * (2 * SLOTS), set())


def test_memory_that_is_in_use_is_found_by_nobody_else() -> None:
    on = status_stores(2)
    memories = shared(on)
    assert None not in memories
    _, path, _ = on[0].read("shared_memory")
    with pytest.raises(FileNotFoundError):
        open(path, "rb").close()


def test_two_runs_of_a_machine_do_not_share() -> None:
    (first,), (second,) = shared(status_stores(1)), shared(status_stores(1))
    assert first is not None
    assert second is not None
    assert first[:64] != second[:64]


def test_a_system_without_nameless_files_shares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    assert shared(status_stores(3)) == [None] * 3


@pytest.mark.parametrize("where", ["os.memfd_create", "os.posix_fallocate", "mmap.mmap"])
def test_where_there_is_no_room_nothing_is_shared(
    where: str, no_descriptor_is_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(where, full)
    assert shared(status_stores(2)) == [None, None]


@pytest.mark.parametrize("what", ["host", "token", "process", "short file", "folder", "device"])
def test_a_note_that_leads_nowhere_is_not_followed(
    what: str, no_descriptor_is_left: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    post = StatusStore.post

    def wrong(store: StatusStore, name: str, note: Any) -> None:
        if name == "shared_memory":
            host, path, token = note
            (tmp_path / "short").write_bytes(bytes.fromhex(token))
            note = {
                "host": [host + " elsewhere", path, token],
                "token": [host, path, "00" * 16],
                "process": [host, f"/proc/{gone()}/fd/3", token],
                "short file": [host, str(tmp_path / "short"), token],
                "folder": [host, str(tmp_path), token],
                "device": [host, "/dev/null", token],
            }[what]
        post(store, name, note)

    monkeypatch.setattr(StatusStore, "post", wrong)
    assert shared(status_stores(2)) == [None, None]


@pytest.mark.parametrize("outsider", [0, 1, 2])
def test_with_one_on_another_machine_nobody_shares(outsider: int, no_descriptor_is_left: None) -> None:
    on = status_stores(3)
    on[outsider].host = "elsewhere"
    assert shared(on) == [None] * 3


@pytest.mark.parametrize("rank", [0, 1])
def test_one_that_does_not_come_is_waited_for_as_long_as_it_may_take(rank: int, no_descriptor_is_left: None) -> None:
    """And one that is gone not at all."""
    on = status_stores(2)
    other = 1 - rank
    began = time.monotonic()
    with pytest.raises(PeerLost, match=f"rank {rank} was to begin together with rank {other}"):
        map_shared_memory(on[rank], 2, 1.5)
    assert time.monotonic() - began > 1.5
    on = status_stores(2)
    on[0].post(f"who/{other}", [on[0].host, gone()])
    assert map_shared_memory(on[rank], 2, 600) is None, "exchanges will say that it is gone"


@pytest.mark.parametrize("rank", [0, 1])
def test_where_the_store_is_gone_there_is_no_channel(
    rank: int, no_descriptor_is_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> NoReturn:
        raise RuntimeError("Connection was likely closed")

    on = status_stores(2)
    monkeypatch.setattr(StatusStore, "read", lost)
    assert map_shared_memory(on[rank], 2, 20) is None
