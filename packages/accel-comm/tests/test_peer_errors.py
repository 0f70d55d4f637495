"""What a rank says of an exchange that another process has left."""

from dataclasses import asdict

import pytest
from accel_comm import CollectiveMismatch, PeerLost
from accel_comm.flight_recorder import FlightRecorder
from accel_comm.hang_diagnosis import RankStatus
from accel_comm.status_store import StatusStore
from accel_comm.transports import peer_errors
from accel_comm.transports.peer_errors import PeerErrors
from accel_state.failure_file import describe
from torch._C._distributed_c10d import HashStore
from torch.distributed import DistBackendError

GLOO = "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4. This may mean"


def errors(store: StatusStore | None = None) -> PeerErrors:
    recorder = FlightRecorder()
    recorder.begin("gather")
    return PeerErrors(0, 3, recorder, store)


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
    other.post("status/1", asdict(RankStatus(1, 3, call="reduce at train.py:4", ended=True)))
    other.post("who/2", [own.host, 0])
    text = str(errors(own).error("no message"))
    assert "\n  rank 1 has come to its end; its last was reduce at train.py:4\n  rank 2 is gone\n" in text
    assert text.endswith("(no message)")
