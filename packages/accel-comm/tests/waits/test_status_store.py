"""Notes that processes leave each other in the store."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from accel_comm.status_store import StatusStore, open_status_store
from hypothesis import given
from hypothesis import strategies as st
from simulated_ranks import CountingStore
from torch._C._distributed_c10d import FileStore, HashStore

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@pytest.fixture(params=["HashStore", "FileStore"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A store that needs no server."""
    return HashStore() if request.param == "HashStore" else FileStore(str(tmp_path / "store"), -1)


def child(code: str = "input()") -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-S", "-c", code], stdin=subprocess.PIPE)


def test_a_note_is_read_by_all(store: Any) -> None:
    status_stores = [StatusStore(store, rank) for rank in range(3)]
    status_stores[1].post("status/1/1", {"waits": 3.5})
    assert [status_store.read("status/1/1") for status_store in status_stores] == [{"waits": 3.5}] * 3


def test_where_there_is_no_note_nobody_waits_for_one(store: Any) -> None:
    assert StatusStore(store, 0).read("verdict") is None


def test_a_note_takes_the_place_of_an_earlier_one(store: Any) -> None:
    status_store = StatusStore(store, 0)
    for beat in range(3):
        status_store.post("beat/0", beat)
        assert status_store.read("beat/0") == beat


@given(note=JSON)
def test_a_note_comes_back_as_it_was(note: Any) -> None:
    """Texts in any script, numbers, lists and tables of them."""
    status_store = StatusStore(HashStore(), 0)
    status_store.post("note", [note])
    assert status_store.read("note") == [note]


def test_a_number_counts_for_all(store: Any) -> None:
    first, second = StatusStore(store, 0), StatusStore(store, 1)
    assert first.count("asked") == 0
    assert [first.count("asked", 1), second.count("asked", 1), first.count("asked", 1)] == [1, 2, 3]
    assert second.count("asked") == 3


def test_threads_that_count_at_once_lose_none() -> None:
    store = HashStore()
    status_stores = [StatusStore(store, rank) for rank in range(4)]
    found: list[list[int]] = [[] for _ in status_stores]

    def count(rank: int) -> None:
        found[rank] = [status_stores[rank].count("asked", 1) for _ in range(100)]

    threads = [threading.Thread(target=count, args=(rank,)) for rank in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(number for numbers in found for number in numbers) == list(range(1, 401))


def test_the_users_own_keys_are_left_alone(store: Any) -> None:
    store.set("verdict", "mine")
    status_store = StatusStore(store, 0)
    status_store.post("note", "ours")
    assert status_store.read("verdict") is None
    assert store.get("verdict") == b"mine"
    assert not store.check(["note"])


def test_this_process_lives(store: Any) -> None:
    StatusStore(store, 1)
    assert StatusStore(store, 0).alive(1) is True


def test_of_one_that_has_not_come_nothing_is_known(store: Any) -> None:
    status_store = StatusStore(store, 0)
    assert status_store.alive(1) is None
    StatusStore(store, 1)
    assert status_store.alive(1) is True


def test_of_one_on_another_machine_nothing_is_known(store: Any) -> None:
    """Process ids of another machine, or of another container, may be those of strangers here."""
    status_store = StatusStore(store, 0)
    status_store.post(f"host/{status_store.host} elsewhere", [1, os.getpid()])
    status_store.post(f"host/{status_store.host}", [2, os.getpid()])
    assert status_store.all_alive([1, 2]) == [None, True]


def test_when_all_have_come_the_store_is_asked_for_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that waits for a rank of another machine asks again and again."""
    store, status_stores = CountingStore(), []
    for rank in range(3):
        monkeypatch.setattr("accel_comm.status_store.own_host", lambda rank=rank: f"machine {rank // 2}")
        status_stores.append(StatusStore(store, rank))
    status_stores[0].remember_all()
    before = store.requests
    assert status_stores[0].all_alive([0, 1, 2, 2]) == [True, True, None, None]
    assert store.requests == before


def test_a_look_at_all_bears_that_another_thread_looks_too(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchdog's, while the main thread describes a loss."""
    status_store = StatusStore(store, 0)

    def lives(pid: int) -> bool:
        StatusStore(store, len(status_store._pids))
        assert status_store.alive(99) is None
        return False

    monkeypatch.setattr("accel_comm.status_store._lives", lives)
    assert status_store.gone_here() == {0}


def test_a_process_that_ended_lives_no_longer(store: Any) -> None:
    """T14: neither as a zombie, of which its parent has not heard yet, nor afterwards."""
    status_store, process = StatusStore(store, 0), child()
    status_store.post(f"host/{status_store.host}", [1, process.pid])
    assert status_store.alive(1) is True
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    assert status_store.alive(1) is False
    process.communicate()
    assert status_store.alive(1) is False


def test_a_process_that_ends_lives_no_longer(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """T14: its connections are closed before it is a zombie, and whoever sees them closed asks for it at once."""
    status_store = StatusStore(store, 0)
    running = Path("/proc/self/stat").read_text()
    before, _, after = running.rpartition(")")
    fields = after.split()
    fields[6] = str(int(fields[6]) | 0x4)
    monkeypatch.setattr(Path, "read_text", lambda path: running)
    assert status_store.alive(0) is True
    monkeypatch.setattr(Path, "read_text", lambda path: f"{before}) {' '.join(fields)}")
    assert status_store.alive(0) is False


def test_a_stopped_process_lives(store: Any) -> None:
    """T26: it may go on."""
    status_store, process = StatusStore(store, 0), child()
    status_store.post(f"host/{status_store.host}", [1, process.pid])
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    assert status_store.alive(1) is True
    process.kill()
    process.communicate()


def test_a_process_of_somebody_else_lives(store: Any) -> None:
    """One that may not be signalled: process 1."""
    status_store = StatusStore(store, 0)
    status_store.post(f"host/{status_store.host}", [1, 1])
    assert status_store.alive(1) is True


def test_a_name_with_brackets_and_blanks_hides_no_zombie(store: Any) -> None:
    status_store, process = StatusStore(store, 0), child("open('/proc/self/comm', 'w').write(') S 1 (x')")
    status_store.post(f"host/{status_store.host}", [1, process.pid])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert ") S 1 (x) Z" in Path(f"/proc/{process.pid}/stat").read_text()
    assert status_store.alive(1) is False
    process.communicate()


def test_without_a_proc_file_system_a_process_is_asked(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS."""

    def missing(*_: object) -> str:
        raise FileNotFoundError("/proc")

    status_store, process = StatusStore(store, 0), child()
    status_store.post(f"host/{status_store.host}", [1, process.pid])
    monkeypatch.setattr(Path, "read_text", missing)
    assert status_store.alive(1) is True
    process.communicate(b"\n")
    assert status_store.alive(1) is False


def test_a_job_without_a_group_has_no_status_store() -> None:
    assert not dist.is_initialized()
    with pytest.raises(ValueError, match="process group"):
        open_status_store(0, 0)
