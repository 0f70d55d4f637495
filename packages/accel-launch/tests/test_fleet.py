"""Launchers of several machines in threads of one process: who is let in, and what each hears of the others."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from accel_launch import elsewhere, gathering, link
from accel_launch import first as first_module
from accel_launch.elsewhere import VERSION, Elsewhere, Share
from accel_launch.first import First
from accel_launch.gathering import Gathering
from accel_launch.joined import Joined
from accel_launch.machines import Place
from accel_launch.outcome import KILLED, OF_A_PEER, SAID
from accel_state.errors import CannotRun

HOST = "127.0.0.1"


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence counts after 0.6 s, in which six signs of life have room."""
    monkeypatch.setattr(link, "SILENCE_S", 0.6)
    monkeypatch.setattr(link, "BEAT_S", 0.1)
    monkeypatch.setattr(elsewhere, "BEAT_S", 0.1)
    monkeypatch.setattr(gathering, "HELLO_S", 0.3)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as found:
        yield found


@pytest.fixture
def port() -> int:
    with socket.create_server((HOST, 0)) as server:
        return int(server.getsockname()[1])


def come(port: int, machine: int, count: int, processes: int = 1, **about: Any) -> Joined:
    found = Joined(Place(machine, count, HOST, port), processes, **about)
    found.join(60)
    return found


def say(port: int, said: bytes) -> socket.socket:
    """Somebody who connects, and says this."""
    until = time.monotonic() + 60
    while True:
        try:
            peer = socket.create_connection((HOST, port))
        except ConnectionRefusedError:
            assert time.monotonic() < until
            time.sleep(0.01)
            continue
        peer.sendall(said)
        return peer


def gather(pool: ThreadPoolExecutor, first: First, wait_s: float = 10) -> "Future[None]":
    return pool.submit(first.gather, wait_s)


@contextmanager
def fleet(pool: ThreadPoolExecutor, port: int, count: int) -> Iterator[tuple[First, list[Joined]]]:
    """That many machines that have met, and have been dealt one rank each."""
    with First(Place(0, count, HOST, port), 1) as first:
        met = gather(pool, first)
        others = [come(port, machine, count) for machine in range(1, count)]
        met.result()
        first.deal(0, 1, 2)
        for other in others:
            assert other.wait(60) is not None
        try:
            yield first, others
        finally:
            for other in others:
                other.__exit__()


def until_heard(hears: Callable[[], Elsewhere | None]) -> Elsewhere:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        found = hears()
        if found is not None:
            return found
        time.sleep(0.01)
    raise AssertionError("nothing was heard")


def test_ranks_are_dealt_in_the_order_of_machines_not_of_their_coming(pool: ThreadPoolExecutor, port: int) -> None:
    with First(Place(0, 3, HOST, port), 2) as first:
        met = gather(pool, first)
        with come(port, 2, 3, processes=4) as two, come(port, 1, 3, processes=1) as one:
            met.result()
            assert first.deal(5, 11, 12) == Share(0, 5, 0, 7, HOST, 11, 12)
            assert one.wait(60) == Share(1, 5, 2, 7, HOST, 11, 12)
            assert two.wait(60) == Share(2, 5, 3, 7, HOST, 11, 12)


def hello(**changed: Any) -> bytes:
    usual = {"is": "hello", "version": VERSION, "machine": 1, "count": 2, "host": "h", "processes": 1}
    kept = {name: value for name, value in {**usual, **changed}.items() if value != "left out"}
    return json.dumps(kept).encode() + b"\n"


STRANGERS = {
    "nothing at all": b"",
    "half a line": b'{"is": "hel',
    "another protocol": b"GET / HTTP/1.1\r\n\r\n",
    "no line": b"x" * 100_000,
    "deep": b"[" * 300_000 + b"\n",
    "a list as a machine": hello(machine=[1]),
    "nothing as a machine": hello(machine=None),
    "more than all as a machine": hello(machine=float("inf")),
    "a machine below the first": hello(machine=-1),
    "a machine after the last": hello(machine=2),
    "no number of processes": hello(processes="left out"),
    "no process": hello(processes=0),
    "a word as processes": hello(processes="many"),
}


@pytest.mark.parametrize("ends", [True, False], ids=["who leaves", "who stays"])
@pytest.mark.parametrize("said", STRANGERS.values(), ids=STRANGERS)
def test_a_stranger_does_not_keep_the_machines_from_meeting(
    said: bytes, ends: bool, pool: ThreadPoolExecutor, port: int
) -> None:
    """A scan of ports, a browser, a program with the wrong port: the real machine 1 comes after it, and is let in."""
    with First(Place(0, 2, HOST, port), 1) as first:
        met = gather(pool, first)
        stranger = say(port, said)
        if ends:
            stranger.close()
        with come(port, 1, 2) as one:
            met.result()
            assert first.deal(0, 1, 2).world == 2
            assert one.wait(60) is not None
        stranger.close()


def test_those_who_say_nothing_keep_no_machine_waiting(
    pool: ThreadPoolExecutor, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them has as much time as the real machine has patience."""
    monkeypatch.setattr(gathering, "HELLO_S", 10)
    monkeypatch.setattr(link, "SILENCE_S", 10)
    with First(Place(0, 2, HOST, port), 1) as first:
        met = gather(pool, first, 30)
        silent = [say(port, b"") for _ in range(4)]
        with come(port, 1, 2) as one:
            met.result(60)
            first.deal(0, 1, 2)
            assert one.wait(60) is not None
        for each in silent:
            each.close()


def test_of_many_who_say_nothing_the_oldest_are_sent_away(
    pool: ThreadPoolExecutor, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "HELLO_S", 10)
    monkeypatch.setattr(link, "SILENCE_S", 10)
    monkeypatch.setattr(gathering, "MOST_STRANGERS", 3)
    with First(Place(0, 2, HOST, port), 1) as first:
        met = gather(pool, first, 30)
        silent = [say(port, b"") for _ in range(5)]
        for each in silent[:2]:
            each.settimeout(60)
            assert len(each.makefile().read()) < 1000, "signs of life, up to the end of the connection"
        for each in silent[2:]:
            each.settimeout(60)
            assert each.recv(1), "a sign of life"
        with come(port, 1, 2):
            met.result(60)
        for each in silent:
            each.close()


def test_the_time_to_meet_is_kept_while_others_come_who_say_nothing(pool: ThreadPoolExecutor, port: int) -> None:
    with First(Place(0, 2, HOST, port), 1) as first:
        met, peers = gather(pool, first, 1.0), [say(port, b"")]
        while not met.done():
            with suppress(OSError):  # nobody listens any more
                peers.append(socket.create_connection((HOST, port)))
            assert len(peers) < 60, "the time has passed"
            time.sleep(0.1)
        with pytest.raises(CannotRun, match=r"machine 1 of 2 did not come within 1 s"):
            met.result()
        for each in peers:
            each.close()


@pytest.mark.parametrize("first_to_come", ["it", "the one that came instead"])
def test_a_machine_that_gave_up_in_the_queue_is_not_admitted(
    first_to_come: str, pool: ThreadPoolExecutor, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_a_queue(*about: Any) -> socket.socket:
        """A socket to which machines have come before anybody looks."""
        listening = listen(*about)
        for gives_up in (True, False) if first_to_come == "it" else (False, True):
            peer = say(port, hello())
            peers.append(peer)
            if gives_up:
                peer.close()
        return listening

    listen, peers = gathering.listen, list[socket.socket]()
    monkeypatch.setattr(first_module, "listen", with_a_queue)
    with First(Place(0, 2, HOST, port), 1) as first:
        gather(pool, first, 10).result()
        first.deal(0, 1, 2)
        (lives,) = [peer for peer in peers if peer.fileno() >= 0]
        assert json.loads(lives.makefile().readline())["is"] == "go"
        assert first.heard() is None
        lives.close()


def test_a_machine_that_comes_again_finds_its_place_free_as_soon_as_it_has_left(
    pool: ThreadPoolExecutor, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both happens between two looks of the first machine."""
    peers, usual = list[socket.socket](), Gathering._open

    def late(self: Gathering, listening: socket.socket) -> None:
        if self.others and len(peers) == 1:
            peers[0].close()
            peers.extend(say(port, hello(machine=machine, count=3)) for machine in (1, 2))
        usual(self, listening)

    monkeypatch.setattr(Gathering, "_open", late)
    with First(Place(0, 3, HOST, port), 1) as first:
        met = gather(pool, first)
        peers.append(say(port, hello(machine=1, count=3)))
        met.result(60)
        for each in peers:
            each.close()


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({"version": 99}, "runs another version of accel launch"),
        ({"machine": 0}, "machine_rank 0 was given on two machines"),
        ({"count": 3}, "num_machines is 2 on"),
        ({"alike": {"num_processes": 8}}, "num_processes is 4 on"),
        ({"alike": {"num_processes": 4, "mixed_precision": "bf16"}}, "mixed_precision is None on"),
    ],
)
def test_a_machine_that_does_not_fit_ends_the_meeting_with_the_reason(
    about: dict[str, Any], words: str, pool: ThreadPoolExecutor, port: int
) -> None:
    with First(Place(0, 2, HOST, port), 1, asked=4, alike={"mixed_precision": None}) as first:
        met = gather(pool, first)
        peer = say(port, hello(**about))
        with pytest.raises(CannotRun, match=words):
            met.result()
        assert words in json.loads(peer.makefile().readline())["why"][0]
        peer.close()


def test_machines_wait_for_one_that_comes_late(pool: ThreadPoolExecutor, port: int) -> None:
    """Three times as long as silence counts: the first one gives those that are there signs of life."""
    with First(Place(0, 3, HOST, port), 1) as first:
        met = gather(pool, first)
        with come(port, 1, 3) as one:
            begun = pool.submit(one.wait, 10)
            time.sleep(1.8)
            with come(port, 2, 3):
                met.result()
                first.deal(0, 1, 2)
                assert begun.result() is not None


def test_a_machine_that_has_left_may_come_again(pool: ThreadPoolExecutor, port: int) -> None:
    with First(Place(0, 3, HOST, port), 1) as first:
        met = gather(pool, first)
        with come(port, 1, 3):
            time.sleep(0.5)
        time.sleep(0.5)
        with come(port, 1, 3) as again, come(port, 2, 3):
            met.result()
            first.deal(0, 1, 2)
            assert again.wait(60) is not None


def test_those_that_are_there_are_told_who_is_missing(pool: ThreadPoolExecutor, port: int) -> None:
    with First(Place(0, 4, HOST, port), 1) as first:
        met = gather(pool, first, 0.8)
        with come(port, 2, 4) as two:
            told = pool.submit(two.wait, 5)
            with pytest.raises(
                CannotRun, match=r"machine 1, 3 of 4 did not come within 0\.8 s; here: machine 0 .*, 2 "
            ):
                met.result()
            with pytest.raises(CannotRun, match="machine 1, 3 of 4 did not come"):
                told.result()


def test_somebody_else_at_the_place_of_the_first_machine_is_no_machine(port: int) -> None:
    with socket.create_server((HOST, port)) as server, come(port, 1, 2) as one:
        peer = server.accept()[0]
        peer.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
        with pytest.raises(CannotRun, match=r"machine 0, 127\.0\.0\.1, .*what came is of no accel launch"):
            one.wait(60)
        peer.close()


def test_what_fails_on_a_machine_is_heard_by_all_others(pool: ThreadPoolExecutor, port: int) -> None:
    failed = Elsewhere(1, "h1", "words", 7, "a cause", SAID)
    with fleet(pool, port, 3) as (first, (one, two)):
        one.tell(failed)
        assert until_heard(first.heard) == failed
        assert until_heard(two.heard) == failed
        assert one.heard() is None


@pytest.mark.parametrize("gone", [1, 2])
def test_a_machine_that_is_gone_is_told_to_those_that_are_left(gone: int, pool: ThreadPoolExecutor, port: int) -> None:
    with fleet(pool, port, 3) as (first, others):
        others[gone - 1].__exit__()
        left = others[2 - gone]
        for hears in (first.heard, left.heard):
            found = until_heard(hears)
            assert (found.machine, found.code, found.place) == (gone, 1, KILLED)
            assert "the machine is gone: its launcher has ended" in found.words
        assert first.lost
        assert not left.lost


@pytest.mark.parametrize("waits", [0, 1])
def test_a_machine_whose_terminal_nobody_reads_is_not_gone(waits: int, pool: ThreadPoolExecutor, port: int) -> None:
    """Its launcher waits in a write, for as long as its user has stopped the output."""
    with fleet(pool, port, 2) as (first, (one,)):
        blocked, other = ((first, one), (one, first))[waits]
        with blocked.beating():
            until = time.monotonic() + 3 * link.SILENCE_S
            while time.monotonic() < until:
                assert other.heard() is None
                time.sleep(0.01)
        assert until_heard(other.heard).machine == waits, "and it is once it gives no sign"


def test_a_first_machine_that_falls_silent_is_gone(pool: ThreadPoolExecutor, port: int) -> None:
    """The cable is pulled: no end of the connection comes."""
    with fleet(pool, port, 2) as (_, (one,)):
        found = until_heard(one.heard)
        assert (found.machine, one.lost) == (0, True)
        assert "the machine is gone: nothing was heard of it for 0.6 s" in found.words


def test_a_machine_is_not_lost_while_another_takes_its_time_to_end(pool: ThreadPoolExecutor, port: int) -> None:
    with fleet(pool, port, 3) as (first, (one, two)):
        settled = pool.submit(first.settle, False, False, 5.0)

        def work(machine: Joined, seconds: float) -> Elsewhere | None:
            until, found = time.monotonic() + seconds, None
            while time.monotonic() < until and found is None:
                found = machine.heard()
                time.sleep(0.02)
            machine.ended(progressed=machine is two)
            return found

        works = pool.submit(work, one, 1.5), pool.submit(work, two, 1.0)
        assert [each.result() for each in works] == [None, None]
        assert settled.result() is True
        assert not first.lost


def test_machines_that_do_not_end_after_a_failure_are_given_up(pool: ThreadPoolExecutor, port: int) -> None:
    with fleet(pool, port, 2) as (first, (one,)):
        beats = pool.submit(until_heard, one.heard)
        assert first.settle(False, True, 0.3) is False
        assert first.lost
        assert "its launcher has ended" in beats.result().words


def test_a_failure_of_the_attempt_before_does_not_end_the_next_one(pool: ThreadPoolExecutor, port: int) -> None:
    """It was on its way when all had been told to start again."""
    with fleet(pool, port, 2) as (first, (one,)):
        old = Elsewhere(1, "h1", "old", 7, attempt=0)
        first.failures.append(old)
        first.tell(Elsewhere(0, "h0", "old", 7, attempt=0))
        one.tell(old)
        first.deal(1, 1, 2)
        assert one.wait(60) == Share(1, 1, 1, 2, HOST, 1, 2)
        assert first.failures == one.failures == []
        one.tell(Elsewhere(1, "h1", "new", 8, "", OF_A_PEER, attempt=1))
        assert until_heard(first.heard).words == "new"
        assert one.heard() is None
