"""Index arithmetic: which samples a rank gets, and what is real in the last round."""

import itertools
from collections.abc import Iterator

import pytest
from accel_data.sharding.rank_slices import (
    DataRank,
    Ending,
    RankSlice,
    slices_in,
    slices_of_batches,
    slices_of_samples,
    with_last,
)
from accel_state import Tail


def endless() -> Iterator[int]:
    yield from itertools.count()


@pytest.mark.parametrize(("index", "of"), [(2, 2), (-1, 2), (0, 0), (1, 1)])
def test_a_rank_outside_its_world_is_refused_with_the_range(index: int, of: int) -> None:
    with pytest.raises(ValueError, match=f"process_index={index} of num_processes={of}: expected 0 to {of - 1}"):
        DataRank(index, of)


def test_two_flags_of_a_loader_name_one_ending() -> None:
    assert Ending.of(drop_last=False, even_batches=True) is Ending.REPEAT
    assert Ending.of(drop_last=False, even_batches=False) is Ending.UNEVEN
    # nothing is repeated and no rank gets less: what does not fill a round is dropped
    assert Ending.of(drop_last=True, even_batches=True) is Ending.of(drop_last=True, even_batches=False) is Ending.DROP


def test_only_a_part_of_a_filled_round_has_a_tail() -> None:
    first, last = slices_of_samples(range(10), DataRank(1, 3), rows=2, ending=Ending.REPEAT)
    assert first == RankSlice([2, 3], None)
    assert last == RankSlice([8, 9], Tail((2, 2, 0), (2, 2, 2)))


def test_the_tail_says_how_many_samples_of_each_rank_are_real() -> None:
    tails = [
        list(slices_of_samples(range(5), DataRank(rank, 4), rows=2, ending=Ending.REPEAT))[-1].tail for rank in (0, 3)
    ]
    assert tails == [Tail((2, 2, 1, 0), (2, 2, 2, 2))] * 2
    assert [tail.total for tail in tails if tail is not None] == [5, 5]


def test_a_stream_shorter_than_a_round_goes_round_and_round() -> None:
    parts = [list(slices_of_samples([7], DataRank(rank, 3), rows=2, ending=Ending.REPEAT)) for rank in range(3)]
    assert parts == [[RankSlice([7, 7], Tail((1, 0, 0), (2, 2, 2)))]] * 3


@pytest.mark.parametrize("ending", [Ending.DROP, Ending.UNEVEN])
def test_nothing_that_is_dropped_or_uneven_has_a_tail(ending: Ending) -> None:
    parts = [
        part
        for rank in range(3)
        for part in [
            *slices_of_samples(range(10), DataRank(rank, 3), rows=2, ending=ending),
            *slices_of_batches([[0], [1], [2], [3]], DataRank(rank, 3), rows=None, ending=ending),
        ]
    ]
    assert [part.tail for part in parts] == [None] * len(parts)


def test_whole_batches_that_vary_are_repeated_whole() -> None:
    batches = [[0, 1, 2], [3], [4, 5]]
    parts = list(slices_of_batches(batches, DataRank(1, 2), rows=None, ending=Ending.REPEAT))
    assert parts == [RankSlice([3], None), RankSlice([0, 1, 2], Tail((2, 0), (2, 3)))]


def test_a_short_last_batch_of_a_full_round_is_filled_up_too() -> None:
    batches = [[0, 1], [2, 3], [4, 5], [6]]
    parts = [list(slices_of_batches(batches, DataRank(rank, 2), rows=2, ending=Ending.REPEAT))[-1] for rank in range(2)]
    assert parts == [RankSlice([4, 5], Tail((2, 1), (2, 2))), RankSlice([6, 0], Tail((2, 1), (2, 2)))]


def test_a_short_batch_in_the_middle_is_left_as_it_is() -> None:
    batches = [[0], [1, 2], [3, 4], [5, 6]]
    assert list(slices_of_batches(batches, DataRank(0, 2), rows=2, ending=Ending.REPEAT)) == [
        RankSlice([0]),
        RankSlice([3, 4]),
    ]


def test_a_batch_that_is_no_sequence_counts_as_one_sample() -> None:
    parts = list(slices_of_batches([10, 11, 12], DataRank(1, 2), rows=None, ending=Ending.REPEAT))
    assert parts == [RankSlice(11), RankSlice(10, Tail((1, 0), (1, 1)))]


def test_an_endless_stream_is_dealt_as_it_comes() -> None:
    samples = slices_of_samples(endless(), DataRank(1, 2), rows=2, ending=Ending.REPEAT)
    assert [part.items for part in itertools.islice(samples, 2)] == [[2, 3], [6, 7]]
    batches = slices_of_batches(([i] for i in endless()), DataRank(1, 2), rows=1, ending=Ending.REPEAT)
    assert [part.items for part in itertools.islice(batches, 2)] == [[1], [3]]


@pytest.mark.parametrize("ending", Ending)
@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_the_number_of_parts_is_known_without_dealing(rows: int, world: int, ending: Ending) -> None:
    for count, rank in itertools.product(range(2 * rows * world + 2), range(world)):
        where = DataRank(rank, world)
        dealt = len(list(slices_of_samples(range(count), where, rows=rows, ending=ending)))
        assert slices_in(count, where, ending=ending, rows=rows) == dealt, (count, rank)


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_every_sample_is_seen_once_when_nothing_is_repeated(world: int) -> None:
    """S45: each process sees a different portion, and together they see everything."""
    seen = [
        sample
        for rank in range(world)
        for part in slices_of_samples(range(50), DataRank(rank, world), rows=4, ending=Ending.UNEVEN)
        for sample in part.items
    ]
    assert sorted(seen) == list(range(50))


@pytest.mark.parametrize(
    ("stream", "expected"), [("", []), ("a", [("a", True)]), ("abc", [("a", False), ("b", False), ("c", True)])]
)
def test_the_last_item_is_known_before_it_is_used(stream: str, expected: list[tuple[str, bool]]) -> None:
    assert list(with_last(stream)) == expected


def test_looking_for_the_last_item_reads_one_ahead_and_no_more() -> None:
    source = endless()
    assert next(with_last(source)) == (0, False)
    assert next(source) == 2
