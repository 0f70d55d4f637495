"""When a checkpoint in memory is due: no process runs here, and the clocks of ranks are lists of numbers."""

import random
from collections.abc import Iterator
from itertools import pairwise

import pytest
from accel.checkpoint.memory_clock import MemoryClock
from accel_state.save_interval import SaveInterval


class Rank:
    """A rank whose steps take as many seconds as given, in turn, for ever."""

    def __init__(self, every: str, steps_s: list[float]) -> None:
        self.now_s, self._steps_s = 0.0, steps_s
        interval = SaveInterval.of(every)
        assert interval is not None
        self.clock = MemoryClock(interval, lambda: self.now_s)

    def step(self, number: int) -> None:
        self.now_s += self._steps_s[number % len(self._steps_s)]


def saves(ranks: list[Rank], steps: int) -> Iterator[tuple[int, int]]:
    """The steps at which all save, and how often they have asked each other until then."""
    asked = 0
    for step in range(1, steps + 1):
        for rank in ranks:
            rank.step(step)
        asks = {rank.clock.asks(step) for rank in ranks}
        assert len(asks) == 1, "some ranks ask and others do not"
        if asks == {True}:
            asked += 1
            slowest = max(rank.clock.elapsed_s for rank in ranks)
            due = {rank.clock.due(step, slowest) for rank in ranks}
            assert len(due) == 1
            if due == {True}:
                yield step, asked
                for rank in ranks:
                    rank.clock.begin(step)


def test_each_fifth_step_is_saved_whatever_steps_take() -> None:
    ranks = [Rank("5", [0.1, 3.0]), Rank("5", [1.0])]
    assert [step for step, _ in saves(ranks, 23)] == [5, 10, 15, 20]


def test_ranks_of_unlike_speed_save_after_the_same_steps() -> None:
    chance = random.Random(0)
    ranks = [Rank("30s", [chance.uniform(0.05, 0.2) for _ in range(50)]) for _ in range(4)]
    found = list(saves(ranks, 1200))
    assert len(found) >= 4
    between = [later[0] - earlier[0] for earlier, later in pairwise(found)]
    assert all(200 <= steps <= 260 for steps in between), between
    # some ten questions for each, not one at each step
    assert found[-1][1] <= 14 * len(found)


def test_steps_of_twice_the_time_delay_a_save_twofold_at_most() -> None:
    rank = Rank("10s", [0.01] * 500 + [0.02] * 2500)
    began_s = 0.0
    for _ in saves([rank], 3000):
        assert rank.now_s - began_s <= 20
        began_s = rank.now_s
    assert began_s > 40


def test_a_step_longer_than_the_interval_is_saved_each_time() -> None:
    assert [step for step, _ in saves([Rank("1s", [5.0])], 4)] == [1, 2, 3, 4]


@pytest.mark.parametrize("every", ["5", "30s"])
def test_a_resume_begins_to_count_anew(every: str) -> None:
    rank = Rank(every, [1.0])
    rank.clock.begin(100)
    assert not rank.clock.asks(100)


def test_optimizers_that_begin_anew_are_counted_anew() -> None:
    rank = Rank("5", [1.0])
    rank.clock.begin(100)
    assert [step for step in range(1, 12) if rank.clock.asks(step)] == [6, 7, 8, 9, 10, 11]
