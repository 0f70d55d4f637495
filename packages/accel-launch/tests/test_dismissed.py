"""A launcher that waits for other machines, and that somebody ends: it leaves with words, and the others are told."""

import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType

import pytest
from accel_launch.elsewhere import Dismissed, Elsewhere
from accel_launch.first import First
from accel_launch.joined import Joined
from accel_launch.machines import Place
from accel_launch.outcome import SAID
from accel_launch.signals import Inbox, Received
from accel_launch.waiting import Called, Waiting

HOST = "127.0.0.1"


class Letters(Inbox):
    """Signals of a test: those put into it come out, and nothing else."""

    def __init__(self) -> None:
        self.open = 0
        self.letters: list[Received] = []

    def __enter__(self) -> "Letters":
        self.open += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.open -= 1

    def put(self, *numbers: signal.Signals) -> None:
        self.letters += [Received(number, from_terminal=False) for number in numbers]

    def wait(self, timeout_s: float) -> Received | None:
        if not self.letters:
            time.sleep(min(timeout_s, 0.01))
        return self.letters.pop(0) if self.letters else None

    def in_child(self) -> None: ...


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as found:
        yield found


@pytest.fixture
def port() -> int:
    with socket.create_server((HOST, 0)) as server:
        return int(server.getsockname()[1])


class Pair:
    """Two machines that have met and have been dealt their ranks, and what comes to their launchers."""

    def __init__(self, port: int, pool: ThreadPoolExecutor, stack: ExitStack) -> None:
        self.letters = Letters(), Letters()
        self.first = stack.enter_context(First(Place(0, 2, HOST, port), 1, waiting=Waiting(self.letters[0])))
        met = pool.submit(self.first.gather, 10)
        self.one = stack.enter_context(Joined(Place(1, 2, HOST, port), 1, waiting=Waiting(self.letters[1])))
        self.one.join(60)
        met.result()
        self.first.deal(0, 1, 2)
        assert self.one.wait(60) is not None


@pytest.fixture
def pair(port: int, pool: ThreadPoolExecutor) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(port, pool, stack)


def soon(hears: Callable[[], Elsewhere | None]) -> Elsewhere:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if (found := hears()) is not None:
            return found
        time.sleep(0.01)
    raise AssertionError("nothing was heard")


def test_an_inbox_stays_open_while_any_waits_and_keeps_what_comes_between() -> None:
    letters = Letters()
    waiting = Waiting(letters)
    with waiting:
        with waiting:
            assert letters.open == 1
        assert letters.open == 1, "a signal that comes now would end the launcher"
        letters.put(signal.SIGUSR1, signal.SIGTERM, signal.SIGTERM)
        with pytest.raises(Called, match="SIGTERM"):
            waiting.pause(10)
    assert letters.open == 0
    assert letters.letters == [], "the same signal, sent twice, ends nothing after the end"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_first_machine_that_waits_for_others_leaves_and_tells_who_has_come(
    number: signal.Signals, port: int, pool: ThreadPoolExecutor
) -> None:
    letters = Letters()
    with Joined(Place(2, 3, HOST, port), 1) as two:
        with First(Place(0, 3, HOST, port), 1, waiting=Waiting(letters)) as first:
            met = pool.submit(first.gather, 30)
            two.join(60)
            begun = pool.submit(two.wait, 10)
            time.sleep(0.3)
            letters.put(number)
            with pytest.raises(Dismissed) as caught:
                met.result()
        assert caught.value.failed.code == 128 + number
        assert f"by {number.name} from outside" in caught.value.words
        assert "machine 1 of 3 to come" in caught.value.words
        assert begun.result() is None
        two.heard_late()
        (told,) = two.failures
        assert (told.machine, told.code, told.outside) == (0, 128 + number, True)
        assert number.name in told.words


def test_a_machine_that_nobody_answers_leaves(port: int) -> None:
    letters = Letters()
    letters.put(signal.SIGTERM)
    with (
        Joined(Place(1, 2, HOST, port), 1, waiting=Waiting(letters)) as one,
        pytest.raises(Dismissed, match="SIGTERM") as caught,
    ):
        one.join(30)
    assert f"machine 0 to answer at {HOST}:{port}" in caught.value.words


def test_a_first_machine_whose_ranks_have_ended_leaves_and_says_for_whom_it_waited(pair: Pair) -> None:
    pair.letters[0].put(signal.SIGTERM)
    with pytest.raises(Dismissed) as caught:
        pair.first.settle(False, False, 30.0)
    assert "waited for machine 1, " in caught.value.words
    told = soon(pair.one.heard)
    assert (told.machine, told.code, told.outside) == (0, 143, True)


def test_a_machine_whose_ranks_have_ended_leaves_and_is_not_taken_for_lost(pair: Pair) -> None:
    pair.letters[1].put(signal.SIGINT)
    pair.one.ended(False)
    with pytest.raises(Dismissed) as caught:
        pair.one.wait(30)
    pair.one.__exit__()
    assert f"waited for machine 0, {HOST}, to end, or to start again" in caught.value.words
    pair.first.settle(False, False, 30.0)
    while not pair.first.lost:
        pair.first.heard()
    assert [(told.machine, told.code, told.outside) for told in pair.first.failures] == [(1, 130, True)]
    assert pair.first.asked


def test_a_first_machine_that_pauses_before_a_restart_leaves(pair: Pair) -> None:
    pair.letters[0].put(signal.SIGTERM)
    with pytest.raises(Dismissed) as caught:
        pair.first.idle(30)
    assert "waited for the next start" in caught.value.words


@pytest.mark.parametrize("by", ["a signal", "its end"])
def test_nothing_is_started_again_when_another_machine_leaves_in_the_pause(by: str, pair: Pair) -> None:
    if by == "a signal":
        pair.letters[1].put(signal.SIGTERM)
        with pytest.raises(Dismissed):
            pair.one.wait(30)
    pair.one.__exit__()
    with pytest.raises(Dismissed) as caught:
        pair.first.idle(30)
    failed = caught.value.failed
    assert (failed.machine, failed.outside) == (1, by == "a signal")
    assert caught.value.words == ""


def test_a_signal_that_crosses_with_the_next_start_counts_for_it(pair: Pair) -> None:
    """The first machine has dealt attempt 1 before it hears what machine 1 has said in attempt 0."""
    pair.letters[1].put(signal.SIGTERM)
    with pytest.raises(Dismissed):
        pair.one.wait(30)
    pair.first.deal(1, 1, 2)
    told = soon(pair.first.heard)
    assert (told.outside, told.attempt) == (True, 1)


def test_who_has_ended_the_job_after_a_failure_is_kept_and_its_leaving_is_no_loss(pair: Pair) -> None:
    failed = Elsewhere(1, "h1", "words", 7, "a cause", SAID)
    pair.one.tell(failed)
    pair.one.ended(True, asked=True)
    pair.one.__exit__()
    assert pair.first.settle(False, False, 30.0) is True
    assert pair.first.asked
    while not pair.first.lost:
        pair.first.heard()
    assert pair.first.failures == [failed]
