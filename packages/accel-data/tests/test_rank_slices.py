"""Index arithmetic: which samples a rank gets, and what is real in the last round."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from accel_data.sharding.index_order import LazyOrder
from accel_data.sharding.rank_slices import (
    DataRank,
    Ending,
    RankSlice,
    slices_in,
    slices_of_batches,
    slices_of_samples,
    with_last,
)
from accel_state import BatchPadding


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
    assert last == RankSlice([8, 9], BatchPadding((2, 2, 0), (2, 2, 2)))


def test_the_tail_says_how_many_samples_of_each_rank_are_real() -> None:
    tails = [
        list(slices_of_samples(range(5), DataRank(rank, 4), rows=2, ending=Ending.REPEAT))[-1].tail for rank in (0, 3)
    ]
    assert tails == [BatchPadding((2, 2, 1, 0), (2, 2, 2, 2))] * 2
    assert [tail.total for tail in tails if tail is not None] == [5, 5]


def test_a_stream_shorter_than_a_round_goes_round_and_round() -> None:
    parts = [list(slices_of_samples([7], DataRank(rank, 3), rows=2, ending=Ending.REPEAT)) for rank in range(3)]
    assert parts == [[RankSlice([7, 7], BatchPadding((1, 0, 0), (2, 2, 2)))]] * 3


@pytest.mark.parametrize("ending", [Ending.DROP, Ending.UNEVEN])
def test_nothing_that_is_dropped_or_uneven_has_a_tail(ending: Ending) -> None:
    parts = [
        part
        for rank in range(3)
        for part in [
            *slices_of_samples(range(10), DataRank(rank, 3), rows=2, ending=ending),
            *slices_of_batches([[0], [1], [2], [3]], DataRank(rank, 3), ending=ending),
        ]
    ]
    assert [part.tail for part in parts] == [None] * len(parts)


def test_whole_batches_that_vary_are_repeated_whole() -> None:
    batches = [[0, 1, 2], [3], [4, 5]]
    parts = list(slices_of_batches(batches, DataRank(1, 2), ending=Ending.REPEAT))
    assert parts == [RankSlice([3], None), RankSlice([0, 1, 2], BatchPadding((2, 0), (2, 3)))]


def dealt_batches(
    batches: Iterable[Any], where: DataRank, rows: int, ending: Ending
) -> tuple[Iterator[Any], LazyOrder]:
    """The batches of a rank, of a batch sampler that says how many samples its batches have; and their order."""
    order = LazyOrder(iter(batches), 0, where.of, whole=True)
    return itertools.chain.from_iterable(order.deal(where, rows=rows, ending=ending)), order


def test_a_short_last_batch_of_a_full_round_is_filled_up_too() -> None:
    for rank, last in enumerate(([4, 5], [6, 0])):
        found, order = dealt_batches([[0, 1], [2, 3], [4, 5], [6]], DataRank(rank, 2), 2, Ending.REPEAT)
        assert list(found)[-1] == last
        assert (order.last, order.tail) == (2, BatchPadding((2, 1), (2, 2)))


def test_a_short_last_batch_of_a_full_round_stays_if_parts_may_differ() -> None:
    found, order = dealt_batches([[0, 1], [2, 3], [4, 5], [6]], DataRank(1, 2), 2, Ending.EXACT)
    assert list(found) == [[2, 3], [6]]
    assert (order.last, order.tail) == (2, BatchPadding((2, 1), (2, 1)))


def test_a_round_is_the_last_that_counts_if_the_next_is_dropped() -> None:
    batches = [[0, 1], [2, 3], [4, 5], [6]]
    found, order = dealt_batches(batches, DataRank(0, 2), 2, Ending.DROP)
    assert next(found) == [0, 1]
    assert order.last == 1
    assert list(found) == []
    more, _ = dealt_batches([*batches, [7, 8]], DataRank(0, 2), 2, Ending.DROP)
    assert list(more) == [[0, 1], [4, 5]]


def test_a_short_batch_in_the_middle_is_left_as_it_is() -> None:
    found, _ = dealt_batches([[0], [1, 2], [3, 4], [5, 6]], DataRank(0, 2), 2, Ending.REPEAT)
    assert list(found) == [[0], [3, 4]]


@pytest.mark.parametrize("rank", range(3))
def test_a_short_batch_within_the_last_round_is_filled_up_and_counted(rank: int) -> None:
    found, order = dealt_batches([[0, 1], [2], [3], [4]], DataRank(rank, 3), 2, Ending.REPEAT)
    assert list(found)[-1] == [[4, 0], [1, 2], [3, 0]][rank]
    assert order.tail == BatchPadding((1, 0, 0), (2, 2, 2))


def test_a_batch_that_is_no_sequence_counts_as_one_sample() -> None:
    parts = list(slices_of_batches([10, 11, 12], DataRank(1, 2), ending=Ending.REPEAT))
    assert parts == [RankSlice(11), RankSlice(10, BatchPadding((1, 0), (1, 1)))]


def test_an_endless_stream_is_dealt_as_it_comes() -> None:
    samples = slices_of_samples(endless(), DataRank(1, 2), rows=2, ending=Ending.REPEAT)
    assert [part.items for part in itertools.islice(samples, 2)] == [[2, 3], [6, 7]]
    batches = slices_of_batches(([i] for i in endless()), DataRank(1, 2), ending=Ending.REPEAT)
    assert [part.items for part in itertools.islice(batches, 2)] == [[1], [3]]
    found, _ = dealt_batches(([i] for i in endless()), DataRank(1, 2), 1, Ending.REPEAT)
    assert list(itertools.islice(found, 2)) == [[1], [3]]


def test_samples_of_other_ranks_are_let_go() -> None:
    """Of a round that is 512 batches long, a rank holds its own samples."""
    held, most = 0, 0

    class Sample:
        def __init__(self) -> None:
            nonlocal held, most
            held += 1
            most = max(most, held)

        def __del__(self) -> None:
            nonlocal held
            held -= 1

    samples = (Sample() for _ in range(3 * 512 * 2))
    for part in slices_of_samples(samples, DataRank(7, 512), rows=2, ending=Ending.UNEVEN):
        assert len(part.items) == 2
    assert most < 8


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
