import copy
import pickle
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from accel_state import AccumulationState, BatchPadding, PartialWindow
from hypothesis import given, settings
from hypothesis import strategies as st
from suite.toy_passes import ToyPass

QUICK = settings(derandomize=True, deadline=None)


def flags(accumulation: AccumulationState, batches: int) -> list[bool]:
    """What each tick of one pass over a loader of so many batches says."""
    found = []
    epoch = ToyPass("loader")
    with accumulation.iterating(epoch):
        for index in range(batches):
            epoch.last = index == batches - 1
            found.append(accumulation.tick())
            assert accumulation.sync_gradients is found[-1]
    return found


def test_six_batches_of_four_steps_are_due_at_the_fourth_and_the_last() -> None:
    """Reference 2.5, feature row S96: the next epoch starts afresh."""
    accumulation = AccumulationState(4)
    expected = [False, False, False, True, False, True]
    assert flags(accumulation, 6) == expected
    assert flags(accumulation, 6) == expected


def test_without_the_flush_the_count_carries_over() -> None:
    """Reference 2.5: 2 epochs of 6 with sync_with_dataloader=False."""
    accumulation = AccumulationState(4, at_epoch_end="carry")
    assert flags(accumulation, 6) + flags(accumulation, 6) == [False, False, False, True] * 3


def test_outside_a_loader_every_nth_tick_is_due() -> None:
    accumulation = AccumulationState(3)
    assert [accumulation.tick() for _ in range(7)] == [False, False, True, False, False, True, False]


def test_before_the_first_tick_a_step_is_due() -> None:
    """A script that never accumulates never ticks, and all its steps count."""
    assert AccumulationState(4).due is True


@QUICK
@given(st.integers(1, 9), st.lists(st.integers(1, 30), max_size=5))
def test_a_flushed_epoch_is_due_at_every_nth_batch_and_at_its_last(every: int, epochs: list[int]) -> None:
    accumulation = AccumulationState(every)
    for batches in epochs:
        assert flags(accumulation, batches) == [n % every == 0 or n == batches for n in range(1, batches + 1)]


@QUICK
@given(st.integers(1, 9), st.lists(st.integers(1, 30), max_size=5))
def test_an_unflushed_run_is_due_at_every_nth_batch_of_all(every: int, epochs: list[int]) -> None:
    accumulation = AccumulationState(every, at_epoch_end="carry")
    found = [flag for batches in epochs for flag in flags(accumulation, batches)]
    assert found == [n % every == 0 for n in range(1, sum(epochs) + 1)]


def test_reset_forgets_a_window_that_has_begun() -> None:
    accumulation = AccumulationState(3)
    accumulation.tick()
    accumulation.tick()
    accumulation.reset()
    assert accumulation.due is True
    assert [accumulation.tick() for _ in range(3)] == [False, False, True]


def test_the_number_of_steps_may_be_set_later() -> None:
    """Reference 2.5: `accelerator.gradient_accumulation_steps = 4`."""
    accumulation = AccumulationState()
    accumulation.set_every(2)
    assert (accumulation.every, accumulation.num_steps) == (2, 2)
    assert [accumulation.tick() for _ in range(4)] == [False, True, False, True]


@pytest.mark.parametrize("steps", [0, -1, 1.0, "2", None, True])
def test_a_number_of_steps_that_is_none_is_refused_and_changes_nothing(steps: Any) -> None:
    with pytest.raises(ValueError, match=f"gradient_accumulation_steps={steps!r}: expected a whole number of at least"):
        AccumulationState(steps)
    accumulation = AccumulationState(4)
    with pytest.raises(ValueError, match="of at least 1"):
        accumulation.set_every(steps)
    assert accumulation.every == 4


def test_the_flag_may_be_overruled_where_nothing_is_accumulated() -> None:
    accumulation = AccumulationState(2)
    accumulation.sync_gradients = False
    assert accumulation.due is False
    accumulation.sync_gradients = True
    assert accumulation.due is True


def test_the_flag_of_a_window_is_not_overruled() -> None:
    """Its gradients would be stepped with before they have travelled, or be added to the next window's."""
    accumulation = AccumulationState(2)
    accumulation.tick()
    with pytest.raises(ValueError, match="micro-batch 1 of 2; set gradient_accumulation_steps"):
        accumulation.sync_gradients = True
    accumulation.tick()
    accumulation.sync_gradients = True  # it is
    with pytest.raises(ValueError, match="micro-batch 2 of 2"):
        accumulation.sync_gradients = False
    assert [accumulation.tick() for _ in range(2)] == [False, True]


def test_outside_a_loop_nothing_is_active() -> None:
    accumulation = AccumulationState()
    assert (accumulation.in_dataloader, accumulation.active_dataloader, accumulation.active) == (False, None, None)
    assert (accumulation.end_of_dataloader, accumulation.remainder) == (False, -1)


def test_an_inner_loop_is_the_active_one_and_gives_the_outer_back() -> None:
    """Reference 2.3: an evaluation in the middle of a training epoch."""
    accumulation = AccumulationState()
    train = ToyPass("train")
    with accumulation.iterating(train):
        train.last = True
        inner = ToyPass("eval")
        with accumulation.iterating(inner):
            assert (accumulation.active, accumulation.active_dataloader, accumulation.end_of_dataloader) == (
                inner,
                "eval",
                False,
            )
        assert (accumulation.active, accumulation.active_dataloader, accumulation.end_of_dataloader) == (
            train,
            "train",
            True,
        )
    assert not accumulation.in_dataloader


def test_an_evaluation_inside_does_not_end_the_window_of_the_training() -> None:
    accumulation = AccumulationState(4)
    with accumulation.iterating(ToyPass("train")):
        accumulation.tick()
        inner = ToyPass("eval")
        with accumulation.iterating(inner):
            inner.last = True
        assert [accumulation.tick() for _ in range(3)] == [False, False, True]


def test_an_outer_pass_may_end_before_an_inner_pass_left_with_break() -> None:
    accumulation = AccumulationState()
    inner_epoch = ToyPass("inner")
    outer, inner = accumulation.iterating(ToyPass("outer")), accumulation.iterating(inner_epoch)
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    assert accumulation.active is inner_epoch
    inner.__exit__(None, None, None)
    assert accumulation.active is None


def test_two_equal_passes_over_one_loader_are_told_apart() -> None:
    accumulation = AccumulationState()
    last = ToyPass("same")
    first, second = accumulation.iterating(ToyPass("same")), accumulation.iterating(last)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert accumulation.active is last
    second.__exit__(None, None, None)
    assert not accumulation.in_dataloader


def test_a_pass_ends_when_its_loop_fails() -> None:
    accumulation = AccumulationState()
    with pytest.raises(ZeroDivisionError), accumulation.iterating(ToyPass()):
        1 / 0  # noqa: B018 # the error is what is tested
    assert not accumulation.in_dataloader


def test_a_pass_knows_how_many_samples_a_full_batch_has() -> None:
    accumulation = AccumulationState()
    epoch = ToyPass("loader", 4)
    with accumulation.iterating(epoch):
        assert accumulation.active is epoch
        assert epoch.rows == 4


def test_the_remainder_is_what_is_real_in_the_batch() -> None:
    accumulation = AccumulationState()
    epoch = ToyPass("loader")
    with accumulation.iterating(epoch):
        assert accumulation.remainder == 0
        epoch.tail = BatchPadding((2, 1), (2, 2))
        assert accumulation.remainder == 3
    with pytest.raises(FrozenInstanceError):
        epoch.tail.real = (2, 2)  # type: ignore[misc] # it is frozen


class Told(list[bool]):
    """What a listener heard: whether the window before each was dropped."""

    def begin_window(self, dropped: bool) -> None:
        self.append(dropped)


def test_listeners_are_told_once_of_each_window_and_of_the_drop_before_it() -> None:
    accumulation, told = AccumulationState(4, at_epoch_end="drop"), Told()
    accumulation.tell(told)
    flags(accumulation, 6)
    assert told == [False, False]
    accumulation.tick()
    assert told == [False, False, True]
    accumulation.abandon()
    accumulation.begin_alone()
    assert told == [False, False, True, True]
    accumulation.begin_alone()
    assert len(told) == 4, "a loss of its own begins no window"
    accumulation.tick()
    assert told[4:] == [False]


class NotCopied(Told):
    """A listener that no copy may take along: it may hold models and connections."""

    def __reduce__(self) -> Any:
        raise TypeError("a listener was copied")


def test_a_copy_leaves_the_listeners_to_the_original() -> None:
    accumulation, told = AccumulationState(2), NotCopied()
    accumulation.tell(told)
    copy.deepcopy(accumulation).tick()
    pickle.loads(pickle.dumps(accumulation)).tick()
    assert told == []


def test_a_short_window_is_dropped_on_request() -> None:
    """T24: the next epoch begins a window of its own."""
    accumulation = AccumulationState(4, at_epoch_end="drop")
    assert flags(accumulation, 10) == [False, False, False, True, False, False, False, True, False, False]
    assert (accumulation.steps, accumulation.dropped) == (2, True)
    assert flags(accumulation, 4) == [False, False, False, True]
    assert (accumulation.steps, accumulation.dropped) == (3, False)


@QUICK
@given(st.integers(1, 9), st.lists(st.integers(1, 30), max_size=5), st.sampled_from(PartialWindow))
def test_positions_count_the_micro_batches_of_each_window(every: int, epochs: list[int], end: PartialWindow) -> None:
    accumulation, told, position, windows = AccumulationState(every, at_epoch_end=end), Told(), 0, 0
    accumulation.tell(told)
    for batches in epochs:
        epoch = ToyPass("loader")
        with accumulation.iterating(epoch):
            for index in range(batches):
                epoch.last = index == batches - 1
                due = accumulation.tick()
                windows += position == 0
                position += 1
                assert (accumulation.position, len(told)) == (position, windows)
                assert due == (position == every or (epoch.last and end is PartialWindow.FLUSH))
                if due or (epoch.last and end is PartialWindow.DROP):
                    position = 0


def test_a_pass_whose_batch_comes_is_the_active_one_again() -> None:
    """T24: an evaluation that was begun and left standing says nothing of the training loop."""
    accumulation = AccumulationState(2)
    train = ToyPass("train")
    left = ToyPass("evaluation")
    with accumulation.iterating(train), accumulation.iterating(left):
        left.last = True
        assert accumulation.active_dataloader == "evaluation"
        accumulation.activate(train)
        assert accumulation.active_dataloader == "train"
        assert [accumulation.tick(), accumulation.tick()] == [False, True]
        accumulation.activate(left)
        assert accumulation.end_of_dataloader
    assert accumulation.active is None


def test_passes_are_told_of_each_step_that_is_due() -> None:
    accumulation, epoch = AccumulationState(2), ToyPass()
    with accumulation.iterating(epoch):
        for _ in range(5):
            accumulation.tick()
    assert epoch.steps == 2
