"""Votes of ranks: what each rank learns of the votes of all, and when it waits."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Condition
from typing import Any

import pytest
from accel_comm import CollectiveMismatch
from accel_comm.errors import PeerLost
from accel_comm.flight_recorder import FlightRecorder
from accel_comm.transports import posted
from accel_comm.transports.agreement import TreeAgreement
from accel_comm.transports.peer_errors import PeerErrors
from accel_comm.transports.posted_votes import PostedVotes
from accel_comm.transports.shared_memory import SharedMemoryChannel
from accel_comm.transports.shared_votes import SharedMemoryVotes
from accel_comm.transports.torch_dist import TorchDist
from accel_comm.transports.votes import Votes
from accel_comm.watchdog import own_status
from accel_testing import MakePool, stretched
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_memory_channels import Clock, Lost, channels, joined

Learned = list[tuple[bool, bool, bool]]


class Refused(Exception):
    """What a rank raises here that waits for a vote of a rank that exchanges a message."""


class Rank:
    """A rank of a test, with any number of series of votes."""

    def __init__(self, channel: SharedMemoryChannel) -> None:
        self.channel, self.recorder = channel, FlightRecorder()

    def refuse(self) -> None:
        raise Refused

    def series(self) -> SharedMemoryVotes:
        return SharedMemoryVotes("next batch", self.channel, self.recorder, self.refuse)


class Calls:
    """The calls of trees in one process, each of which ends when all ranks are in it, or one is gone."""

    def __init__(self, size: int) -> None:
        self.size, self.gone = size, False
        self.blocks = defaultdict[int, dict[int, bytes]](dict)
        self.changed = Condition()

    def meet(self, number: int, rank: int, block: bytes) -> list[bytes]:
        with self.changed:
            self.blocks[number][rank] = block
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: len(self.blocks[number]) == self.size or self.gone, 30)
            if self.gone:
                raise RuntimeError("Connection closed by peer [127.0.0.1]:1")
            return [self.blocks[number][other] for other in range(self.size)]

    def lose(self) -> None:
        with self.changed:
            self.gone = True
            self.changed.notify_all()


class Tree:
    """Stands in for the tree of a rank."""

    def __init__(self, rank: int, calls: Calls) -> None:
        self.rank, self.calls, self.number = rank, calls, 0

    def gather(self, row: bytes) -> list[bytes]:
        self.number += 1
        return self.calls.meet(self.number, self.rank, row)

    def all_reduce(self, mine: bytes, join: Callable[[Sequence[bytes]], bytes]) -> bytes:
        return join(self.gather(mine))

    def abandon(self) -> None:
        self.calls.lose()


class FarRank:
    """A rank of a test on a machine of its own."""

    def __init__(self, rank: int, calls: Calls) -> None:
        self.calls, self.recorder = calls, FlightRecorder()
        errors = PeerErrors(rank, self.recorder, None)
        tree: Any = Tree(rank, calls)
        self.agreement = TreeAgreement(tree, calls.size, self.recorder, errors, warns=False)

    def series(self) -> PostedVotes:
        return PostedVotes("next batch", self.agreement, self.recorder)

    def agree(self, what: str) -> object:
        return self.agreement.agree(what, b"", b"", max)


def far_ranks(size: int) -> list[FarRank]:
    calls = Calls(size)
    return [FarRank(rank, calls) for rank in range(size)]


def ranks(size: int, limit_s: float = 5.0) -> list[Rank]:
    return [Rank(channel) for channel in channels(size, limit_s)]


NEAR_AND_FAR = pytest.mark.parametrize("ranks", [ranks, far_ranks])
Ranks = Callable[[int], Sequence[Rank | FarRank]]


def learned(votes: Votes, plan: list[bool], *, newest: bool) -> Learned:
    """What a rank learns with each vote: of the vote before, and of this one if it asks."""
    results = []
    for yes in plan:
        before = votes.cast(yes)
        results.append((before, *((votes.all(), votes.any()) if newest else (True, True))))
    return results


@NEAR_AND_FAR
@settings(max_examples=30, deadline=None)
@given(size=st.integers(2, 4), rounds=st.lists(st.integers(0, 15), max_size=30), newest=st.booleans())
def test_each_rank_learns_the_votes_of_all(ranks: Ranks, size: int, rounds: list[int], newest: bool) -> None:
    plans = [[bool(votes >> rank & 1) for votes in rounds] for rank in range(size)]
    with ThreadPoolExecutor(size) as pool:
        parts = [
            pool.submit(learned, rank.series(), plan, newest=newest)
            for rank, plan in zip(ranks(size), plans, strict=True)
        ]
        results = [part.result() for part in parts]
    said = list(zip(*plans, strict=True))
    before = [True, *map(all, said)][: len(said)]
    now = [(all(votes), any(votes)) if newest else (True, True) for votes in said]
    assert results == [[(first, *second) for first, second in zip(before, now, strict=True)]] * size


def test_a_rank_may_be_a_vote_ahead_and_waits_for_nobody(clock: Clock) -> None:
    fast, slow = (rank.series() for rank in ranks(2))
    assert fast.cast(True)
    for _ in range(100):
        assert slow.cast(True)
        assert fast.cast(True)
    assert clock.naps == []
    with pytest.raises(Lost):
        fast.cast(True)
    assert clock.naps


@NEAR_AND_FAR
def test_series_that_ranks_read_side_by_side_do_not_mix(ranks: Ranks) -> None:
    """An evaluation begins while a pass stands at a vote, of which it learns the result afterwards."""
    one, other = ranks(2)
    outer = [one.series(), other.series()]
    for votes, yes in zip(outer, (True, False), strict=True):
        assert votes.cast(yes)
    with ThreadPoolExecutor(2) as pool:
        parts = [pool.submit(learned, rank.series(), [True] * 9, newest=False) for rank in (one, other)]
        assert [part.result() for part in parts] == [[(True, True, True)] * 9] * 2
        again = [pool.submit(votes.cast, True) for votes in outer]
        assert [part.result() for part in again] == [False, False]
        again = [pool.submit(votes.cast, True) for votes in outer]
        assert [part.result() for part in again] == [True, True]


def test_ranks_that_have_left_their_loops_at_different_places_are_refused() -> None:
    """Their later votes would be taken for votes on other batches."""
    one, other = (rank for rank in ranks(2))
    first, second = one.series(), other.series()
    for votes in (first, second, first):
        votes.cast(True)
    again = other.series()
    again.cast(True)
    words = r"(?s)different places of their loops \(next batch\).*rank 0: 1\n  rank 1: 0\nlook for a `break`"
    with pytest.raises(CollectiveMismatch, match=words):
        first.cast(True)
    with pytest.raises(CollectiveMismatch, match=words):
        again.cast(True)


def test_a_vote_of_a_rank_that_exchanges_a_message_is_not_waited_for(clock: Clock) -> None:
    one, other = ranks(2, limit_s=1000)
    votes = one.series()
    votes.cast(True)
    other.channel.post(b"another call")
    with pytest.raises(Refused):
        votes.all()


@NEAR_AND_FAR
def test_a_vote_is_one_exchange_of_each_rank_whether_it_waits_or_not(ranks: Ranks) -> None:
    """Ranks that have done the same have the same number of exchanges, by which a hang is diagnosed."""
    fast, slow = ranks(2)
    votes = fast.series(), slow.series()
    votes[0].cast(True)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(votes[0].any)
        votes[1].cast(False)
        assert waits.result()
    assert fast.recorder.number == slow.recorder.number == 1
    for series in votes:
        series.leave()
    numbers = [record.number for rank in (fast, slow) if (record := rank.recorder.newest()) is not None]
    assert numbers == [2, 2]


def waits(rank: FarRank) -> bool:
    """Whether the watchdog sees that a thread of the rank waits in an exchange."""
    return own_status(0, rank.recorder).waits is not None


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + stretched(20)
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_a_posted_vote_is_waited_for_with_the_next() -> None:
    """The other rank is late: to cast a vote takes no word of it, and to cast the next takes its vote."""
    fast, slow = far_ranks(2)
    votes, late = fast.series(), slow.series()
    assert votes.cast(True)
    assert fast.recorder.newest() is None
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(votes.cast, True)
        until(lambda: waits(fast))
        assert late.cast(False)
        assert not second.result()
        assert not late.cast(True)


def test_two_streams_in_one_loop_have_two_votes_under_way() -> None:
    """A rank that is late by less than a batch is waited for in neither."""
    fast, slow = far_ranks(2)
    series = [rank.series() for rank in (fast, fast, slow, slow)]
    for _ in range(20):
        assert [votes.cast(True) for votes in series] == [True] * 4
        until(lambda: all(votes._newest.done() for votes in series))
    assert fast.recorder.newest() is slow.recorder.newest() is None


def test_another_call_that_meets_a_posted_vote_is_told_on_both_ranks() -> None:
    """At once to the rank that makes it, to the other when it reads the vote; and what both call next is right."""
    one, other = far_ranks(2)
    votes = one.series()
    votes.cast(True)
    with pytest.raises(CollectiveMismatch) as at_once:
        other.agree("remote barrier")  # no words of gloo's for a lost connection
    with pytest.raises(CollectiveMismatch) as later:
        votes.cast(True)
    assert str(at_once.value) == str(later.value)
    assert "rank 0: next batch (vote 1) at" in str(later.value)
    assert "rank 1: remote barrier at" in str(later.value)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(one.agree, "barrier")
        assert other.agree("barrier") == call.result() == [b""]


def test_a_call_begins_when_the_votes_before_it_are_over() -> None:
    """They have one order on all ranks, and the error of a vote that nobody read is raised by the call after it."""
    one, other = far_ranks(2)
    one.series().cast(True)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(one.agree, "barrier")
        until(lambda: waits(one))
        other.series().cast(False)
        assert other.agree("barrier") == call.result() == [b""]
        one.series().cast(True)
        call = pool.submit(one.agree, "barrier")
        with pytest.raises(CollectiveMismatch, match=r"rank 0: next batch \(vote 1\)"):
            other.agree("gather")
        with pytest.raises(CollectiveMismatch, match="rank 1: gather"):
            call.result()


def test_a_series_whose_vote_has_failed_posts_no_other() -> None:
    """It would meet what the others call next."""
    one, other = far_ranks(2)
    votes = one.series()
    votes.cast(True)
    for rank in (other, one):  # the error of the vote is raised by another call, and caught
        with pytest.raises(CollectiveMismatch):
            rank.agree("barrier")
    with pytest.raises(CollectiveMismatch, match=r"next batch \(vote 1\)"):
        votes.cast(True)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(one.agree, "barrier")
        assert other.agree("barrier") == call.result() == [b""]


@pytest.mark.filterwarnings("ignore:This process")
def test_a_forked_process_ends_no_wait_of_its_parent() -> None:
    """It has none of the threads that wait, but the connections."""
    asked = multiprocessing.get_context("fork").SimpleQueue()
    ended = threading.Event()
    posted.post(ended.wait, None, lambda: asked.put("abandoned"))
    child = os.fork()
    if child == 0:
        posted._end()
        os._exit(0)
    assert os.waitpid(child, 0) == (child, 0)
    ended.set()
    assert asked.empty()


def test_ranks_at_different_posted_votes_are_refused() -> None:
    one, other = far_ranks(2)
    first, second = one.series(), other.series()
    for votes in (first, second, first):
        votes.cast(True)
    again = other.series()
    again.cast(True)
    words = r"(?s)rank 0: next batch \(vote 2\).*rank 1: next batch \(vote 1\)"
    for votes in (first, again):
        with pytest.raises(CollectiveMismatch, match=words):
            votes.cast(True)


def test_a_posted_vote_that_a_lost_rank_does_not_cast_is_an_error() -> None:
    """It is raised when the vote is read; so do what was posted after it, and the next call."""
    rank, _ = far_ranks(2)
    one, other = rank.series(), rank.series()
    one.cast(True)
    other.cast(True)
    rank.calls.lose()
    for call in (one.all, other.any, partial(rank.agree, "barrier")):
        with pytest.raises(PeerLost, match="Connection closed by peer"):
            call()


def voted(how: str) -> list[Learned]:
    transport = joined() if how == "shared memory" else TorchDist()
    plans = [[True, True, False, True], [True, False, False, True]]
    return [learned(transport.votes("next batch"), plans[transport.rank], newest=newest) for newest in (False, True)]


@pytest.mark.parametrize("how", ["shared memory", "messages"])
def test_processes_learn_the_same_with_and_without_shared_memory(world: MakePool, how: str) -> None:
    late = [(True, True, True), (True, True, True), (False, True, True), (False, True, True)]
    soon = [(True, True, True), (True, False, True), (False, False, False), (False, True, True)]
    assert world(2).run(voted, how) == [[late, soon]] * 2


def called_apart(how: str) -> str:
    transport = joined() if how == "shared memory" else TorchDist()
    votes = transport.votes("next batch")
    votes.cast(True)
    call = votes.all if transport.rank == 0 else transport.barrier
    if transport.rank == 0:
        votes.cast(True)
    with pytest.raises(CollectiveMismatch) as error:
        call()
    return str(error.value)


@pytest.mark.parametrize(("how", "number"), [("shared memory", ""), ("messages", " 2")])
def test_a_vote_that_meets_another_call_is_told_on_both_ranks(how: str, number: str, world: MakePool) -> None:
    for text in world(2).run(called_apart, how, timeout_s=60):
        assert f"rank 0: next batch (vote{number}) at" in text
        assert "rank 1: wait_for_everyone at" in text
