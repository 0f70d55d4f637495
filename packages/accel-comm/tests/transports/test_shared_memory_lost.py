"""Copies of a transport, and peers that go: through shared memory as through gloo."""

import copy
import json
import os
import pickle
import re
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
import torch.distributed as dist
from accel_comm import PeerLost
from accel_comm.process_group import limit_of_open_group
from accel_comm.transports.shared_memory import SLOTS
from accel_state import release
from accel_testing import MakePool, RankFailure, stretched
from shared_memory_channels import SOON_S, channel_of, joined


def copied() -> list[bool]:
    transport = joined()
    copies = [pickle.loads(pickle.dumps(transport)), copy.deepcopy(transport), copy.deepcopy({"in": transport})["in"]]
    found = [one is transport for one in copies]
    found.append(copies[0].exchange("gather", b"x") == [b"x"] * 2)
    packed = pickle.dumps(transport)
    release()
    later = pickle.loads(packed)
    return [*found, later is not transport, channel_of(later) is None, (later.rank, later.size) == (dist.get_rank(), 2)]


def test_a_copy_is_the_transport_of_its_process(world: MakePool) -> None:
    """Of the run that has ended nothing is shared."""
    assert world(2).run(copied) == [[True] * 7] * 2


def runs_in_turn() -> list[tuple[int, list[bytes]]]:
    found = []
    for number in range(3):
        transport = joined()
        channel = channel_of(transport)
        assert channel is not None
        found.append((channel.number, transport.exchange("gather", bytes([number, transport.rank]))))
        del channel, transport
        release()
    return found


def test_each_run_of_a_process_has_a_channel_of_its_own(world: MakePool) -> None:
    found = world(2).run(runs_in_turn)
    assert found[0] == found[1]
    assert [content for _, content in found[0]] == [[bytes([number, rank]) for rank in (0, 1)] for number in range(3)]
    assert [number for number, _ in found[0]] == [2, 2, 2]


def lose(folder: Path, victim: int, how: str) -> tuple[str, float]:
    """What this rank hears, and how many seconds after the victim went."""
    transport = joined()
    assert channel_of(transport) is not None
    if transport.rank == victim:
        time.sleep(0.3)
        (folder / "when").write_text(str(time.monotonic()))
        if how == "release":
            release()
            return "", 0.0
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        for _ in range(2 * SLOTS):
            transport.send("one", b"x", transport.rank) if how == "source" else transport.exchange("gather", b"x")
    except PeerLost as error:
        found = str(error), time.monotonic() - float((folder / "when").read_text())
        (folder / f"heard-{transport.rank}").write_text(json.dumps(found))
        release()
        return found
    raise AssertionError("nothing was lost")


@pytest.mark.parametrize(("size", "victim", "how"), [(2, 1, "wait"), (2, 0, "wait"), (2, 1, "source"), (3, 2, "wait")])
def test_a_peer_that_is_killed_is_named_soon(size: int, victim: int, how: str, world: MakePool, tmp_path: Path) -> None:
    """By one who waits for its message, and by one who only tells it things."""
    with pytest.raises(RankFailure) as failure:
        world(size).run(lose, tmp_path, victim, how)
    assert set(failure.value.errors) == {victim}
    for rank in set(range(size)) - {victim}:
        text, seconds = json.loads((tmp_path / f"heard-{rank}").read_text())
        assert f"\n  rank {victim} is gone\n" in text
        assert f"no message from rank {victim} in " in text
        assert re.search(
            rf"^rank {rank} waits in {'one' if how == 'source' else 'gather'} at \S*test_shared_memory", text
        )
        assert seconds < SOON_S


def test_a_peer_that_has_ended_its_run_is_named_soon(world: MakePool, tmp_path: Path) -> None:
    (text, seconds), _ = world(2).run(lose, tmp_path, 1, "release")
    assert "rank 1 has ended" in text
    assert seconds < SOON_S


def interrupted(folder: Path) -> float:
    """Seconds from the signal until the wait is over."""
    transport = joined()
    assert channel_of(transport) is not None
    if transport.rank == 1:
        until = time.monotonic() + stretched(60)
        while not (folder / "over").exists() and time.monotonic() < until:
            time.sleep(0.01)
        release()
        return 0.0
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sent: list[float] = []

    before = transport.recorder.number

    def interrupt() -> None:
        while transport.recorder.number == before:
            time.sleep(0.01)
        time.sleep(0.2)  # it is in its wait
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    try:
        transport.exchange("gather", b"x")
    except KeyboardInterrupt:
        waited = time.monotonic() - sent[0]
    newest = transport.recorder.newest()
    assert newest is not None
    assert newest.ended is not None
    interrupter.join()
    (folder / "over").touch()
    release()
    return waited


def limits() -> list[float]:
    channel, of_group = channel_of(joined()), limit_of_open_group()
    assert channel is not None
    assert of_group is not None
    release()
    return [channel._limit_s, of_group.total_seconds()]


def test_waits_have_the_limit_of_the_group(world: MakePool) -> None:
    for ours, of_group in world(2).run(limits):
        assert ours == of_group > 60


def test_an_interrupt_comes_through_a_wait(world: MakePool, tmp_path: Path) -> None:
    waited, _ = world(2).run(interrupted, tmp_path)
    assert waited < SOON_S


def left_alone(port: int, heard: Path) -> None:
    os.environ["MASTER_PORT"] = str(port)
    transport = joined()
    if transport.rank == 0:
        time.sleep(0.2)
        (heard.parent / "pid").write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)
    while not (heard.parent / "pid").exists():
        time.sleep(0.01)
    time.sleep(0.3)
    try:
        transport.exchange("gather", b"x")
    except RuntimeError as error:
        newest = transport.recorder.newest()
        heard.write_text(f"{type(error).__name__} {newest is not None and newest.ended is not None} {error}")


def test_one_that_dies_with_the_store_is_told(world: MakePool, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(RankFailure):
        world(2, join=False).run(left_alone, port, tmp_path / "heard")
    assert (tmp_path / "heard").read_text().startswith("PeerLost True rank 1 waits in gather at ")
