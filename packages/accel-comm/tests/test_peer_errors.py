"""What a rank says of an exchange that another process has left."""

import signal
import subprocess
import sys

import pytest
from accel_comm import CollectiveMismatch, PeerLost
from accel_comm.flight_recorder import FlightRecorder
from accel_comm.status_store import StatusStore
from accel_comm.transports import peer_errors
from accel_comm.transports.peer_errors import PeerErrors
from accel_state.failure_file import describe
from simulated_ranks import CountingStore
from torch._C._distributed_c10d import HashStore
from torch.distributed import DistBackendError

GLOO = "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4. This may mean"


def errors(store: StatusStore | None = None) -> PeerErrors:
    recorder = FlightRecorder()
    recorder.begin("gather")
    return PeerErrors(0, recorder, store)


def test_what_gloo_says_of_a_connection_is_the_loss_of_a_peer() -> None:
    """T14: of its words only what has happened."""
    words = r"^rank 0 lost another .* in gather at .*\(Connection closed by peer \[127"
    with pytest.raises(PeerLost, match=words), errors().translated():
        raise RuntimeError(GLOO)


def test_what_nccl_says_is_kept_whole_with_who_is_gone() -> None:
    """Its first line is the same for any cause; the last one has it."""
    said = (
        "NCCL error in: ProcessGroupNCCL.cpp:94, remote process exited or network error\n"
        "ncclRemoteError: A call failed.\nLast error:\nNET/IB : Got completion from peer"
    )
    error = DistBackendError(said)
    with pytest.raises(DistBackendError) as raised, errors().translated():
        raise error
    assert raised.value is error
    assert str(error) == said
    (note,) = error.__notes__
    assert note.startswith("rank 0 lost another process, or waited too long for it, in gather at ")


def test_what_nccls_watchdog_has_ended_is_the_loss_of_a_peer() -> None:
    """Its launcher then looks for the process that did not come."""
    error = DistBackendError("[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3) ran for 600 s")
    assert describe(error)["lost_peer"]
    with pytest.raises(DistBackendError) as raised, errors().translated():
        raise error
    assert len(raised.value.__notes__) == 1


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), CollectiveMismatch("different"), KeyError("x")])
def test_any_other_error_stays_what_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as raised, errors().translated():
        raise error
    assert raised.value is error


def test_those_that_are_gone_or_at_their_end_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accel_comm.status_store._lives", lambda pid: pid != 0)
    monkeypatch.setattr(peer_errors, "CLOSES_S", 0.0)
    torch_store = HashStore()
    own, other = StatusStore(torch_store, 0), StatusStore(torch_store, 1)
    other.end("reduce at train.py:4")
    monkeypatch.setattr("os.getpid", lambda: 0)
    StatusStore(torch_store, 2)
    text = str(errors(own).error("no message"))
    assert "\n  rank 1 has come to its end; its last was reduce at train.py:4\n  rank 2 is gone\n" in text
    assert text.endswith("(no message)")


@pytest.mark.parametrize("size", [4, 64])
def test_what_a_rank_asks_at_a_loss_does_not_grow_with_ranks(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them ask at once: of some on eight machines the first has lost all its processes, and 40 have ended."""
    monkeypatch.setattr(peer_errors, "CLOSES_S", 0.0)
    store = CountingStore()
    stores = []
    for rank in range(size):
        monkeypatch.setattr("accel_comm.status_store.own_host", lambda rank=rank: f"machine {rank // 8}")
        stores.append(StatusStore(store, rank))
    for rank in range(3, min(size, 43)):
        stores[rank].end("reduce at train.py:4")
    monkeypatch.setattr("accel_comm.status_store._lives", lambda pid: False)
    before, bytes_before = store.requests, store.bytes_read
    text = str(errors(stores[0]).error("no message"))
    assert store.requests - before == 5
    assert store.bytes_read - bytes_before < 1000
    assert [line for line in text.splitlines() if line.endswith("is gone")] == ["  rank 1 is gone", "  rank 2 is gone"]
    assert ("40 ranks have come to their end by now" in text) == (size > 40)
    assert text.count("reduce at train.py:4") == min(16, min(size, 43) - 3)


def test_a_stopped_process_that_serves_the_store_is_named_and_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request to its store would never end."""
    server = subprocess.Popen([sys.executable, "-Sc", "import signal; signal.pause()"])
    try:
        store = StatusStore(HashStore(), 1)
        monkeypatch.setattr(store, "_pids", {0: server.pid})
        assert not store.is_stopped()
        server.send_signal(signal.SIGSTOP)
        while not store.is_stopped():
            pass
        monkeypatch.setattr(store, "heartbeat", None)
        assert "\n  rank 0, which serves the store, is stopped\n" in str(errors(store).error("no message"))
    finally:
        server.kill()
        server.wait()
