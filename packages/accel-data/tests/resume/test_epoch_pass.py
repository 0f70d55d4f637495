"""When passes over loaders end a window, if several run at a time."""

from accel_data.resume.epoch_pass import EpochPass
from accel_state import AccumulationState


def read(accumulation: AccumulationState, *passes: EpochPass, last: tuple[bool, ...]) -> bool:
    """One micro-batch of a batch of each pass."""
    for epoch, ends in zip(passes, last, strict=True):
        accumulation.activate(epoch)
        epoch.batches += 1
        epoch.last = ends
    return accumulation.tick()


def test_of_passes_read_side_by_side_each_ends_the_window() -> None:
    """T24: `for a, b in zip(short, long)`."""
    accumulation, short, long = AccumulationState(4), EpochPass("short"), EpochPass("long")
    with accumulation.iterating(short), accumulation.iterating(long):
        found = [read(accumulation, short, long, last=(index == 5, False)) for index in range(6)]
    assert found == [False, False, False, True, False, True]


def test_a_pass_that_was_left_at_its_last_batch_ends_no_window() -> None:
    """T24: evaluations in the middle of an epoch, of one batch each, or of several by one iterator."""
    accumulation, train, left = AccumulationState(4), EpochPass("train"), EpochPass("evaluation")
    with accumulation.iterating(train), accumulation.iterating(left):
        assert not read(accumulation, left, train, last=(False, False))
        for ends in (False, True):
            accumulation.activate(left)
            left.batches += 1
            left.last = ends
        assert not read(accumulation, train, last=(False,))
        assert not read(accumulation, train, last=(False,))
    train, left = EpochPass("train"), EpochPass("evaluation")
    with accumulation.iterating(train), accumulation.iterating(left):
        accumulation.reset()
        assert not read(accumulation, left, train, last=(True, False))
        assert not read(accumulation, train, last=(False,))


def test_a_pass_inside_of_one_that_is_read_in_step_ends_no_window() -> None:
    accumulation, train, inner = AccumulationState(4), EpochPass("train"), EpochPass("evaluation")
    with accumulation.iterating(train):
        assert [read(accumulation, train, last=(False,)) for _ in range(2)] == [False, False]
        inner.begin_inside([train])
        with accumulation.iterating(inner):
            assert not read(accumulation, inner, last=(True,))
    inner.begin_inside([EpochPass("train")])
    assert not inner.inner


def test_the_position_of_the_newest_step_is_kept() -> None:
    accumulation, train = AccumulationState(2), EpochPass("train")
    with accumulation.iterating(train):
        for train.at in range(1, 4):
            read(accumulation, train, last=(False,))
    assert (train.at, train.at_step) == (3, 2)
