"""Votes of ranks: what each rank learns of the votes of all, and when it waits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from accel_comm import CollectiveMismatch
from accel_comm.flight_recorder import FlightRecorder
from accel_comm.transports.shared_memory import SharedMemoryChannel
from accel_comm.transports.shared_votes import SharedMemoryVotes
from accel_comm.transports.torch_dist import TorchDist
from accel_comm.transports.votes import Votes
from accel_testing import MakePool
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


def ranks(size: int, limit_s: float = 5.0) -> list[Rank]:
    return [Rank(channel) for channel in channels(size, limit_s)]


def learned(votes: Votes, plan: list[bool], *, newest: bool) -> Learned:
    """What a rank learns with each vote: of the vote before, and of this one if it asks."""
    results = []
    for yes in plan:
        before = votes.cast(yes)
        results.append((before, *((votes.all(), votes.any()) if newest else (True, True))))
    return results


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 4), st.lists(st.integers(0, 15), max_size=30), st.booleans())
def test_each_rank_learns_the_votes_of_all(size: int, rounds: list[int], newest: bool) -> None:
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


def test_series_that_ranks_read_side_by_side_do_not_mix() -> None:
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


def test_a_vote_is_one_exchange_of_each_rank_whether_it_waits_or_not() -> None:
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


def voted(how: str) -> list[Learned]:
    transport = joined() if how == "shared memory" else TorchDist()
    plans = [[True, True, False, True], [True, False, False, True]]
    return [learned(transport.votes("next batch"), plans[transport.rank], newest=newest) for newest in (False, True)]


@pytest.mark.parametrize("how", ["shared memory", "messages"])
def test_processes_learn_the_same_with_and_without_shared_memory(world: MakePool, how: str) -> None:
    late = [(True, True, True), (True, True, True), (False, True, True), (False, True, True)]
    soon = [(True, True, True), (True, False, True), (False, False, False), (False, True, True)]
    assert world(2).run(voted, how) == [[late, soon]] * 2


def called_apart() -> str:
    transport = joined()
    votes = transport.votes("next batch")
    votes.cast(True)
    call = votes.all if transport.rank == 0 else transport.barrier
    if transport.rank == 0:
        votes.cast(True)
    with pytest.raises(CollectiveMismatch) as error:
        call()
    return str(error.value)


def test_a_vote_that_meets_another_call_is_told_on_both_ranks(world: MakePool) -> None:
    for text in world(2).run(called_apart, timeout_s=60):
        assert "rank 0: next batch (vote) at" in text
        assert "rank 1: wait_for_everyone at" in text
