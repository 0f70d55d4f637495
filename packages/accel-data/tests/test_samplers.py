"""The worked tables of batch samplers, and what a shard says of itself."""

from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import Any

import pytest
import torch
from accel_data import BatchSamplerShard, SeedableRandomSampler
from accel_data.sharding.samplers import follows_torch, innermost_sampler
from accel_state import BatchPadding
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler, SequentialSampler, TensorDataset

Batches = list[list[int]]

VARYING: Batches = [[0, 1, 2], [3, 4], [5, 6, 7, 8], [9, 10, 11], [12, 13]]
SEVEN: Batches = [[0], [1, 2], [3, 4, 5], [6], [7, 8], [9, 10, 11], [12, 13]]


class Given(Sampler[list[int]]):
    """A batch sampler of the user's own: the batches that it is given, and no batch size unless told one."""

    def __init__(self, batches: Batches, *, drop_last: bool = False) -> None:
        self.batches = batches
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class GivenWithSize(Given):
    def __init__(self, batches: Batches, batch_size: int) -> None:
        super().__init__(batches)
        self.batch_size = batch_size


class Liar(Sampler[int]):
    """Six indices, and a length that says a hundred."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(6))

    def __len__(self) -> int:
        return 100


class Endless(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return count()


class LongestFirst(BatchSampler):
    """A BatchSampler that cuts batches in a way of its own."""

    def __iter__(self) -> Iterator[list[int]]:
        return reversed(list(super().__iter__()))


def cut(n: int, batch_size: int, drop_last: bool = False) -> BatchSampler:
    return BatchSampler(SequentialSampler(range(n)), batch_size, drop_last)


def dealt(sampler: object, world: int, *, split: bool = False, even: bool = True) -> list[Batches]:
    """What each rank gets; and `len` is right for each."""
    shards = [BatchSamplerShard(sampler, world, rank, split, even) for rank in range(world)]
    layouts = [list(shard) for shard in shards]
    assert [len(shard) for shard in shards] == [len(layout) for layout in layouts]
    return layouts


P0: Batches = [[0, 1, 2], [6, 7, 8], [12, 13, 14]]
P1: Batches = [[3, 4, 5], [9, 10, 11], [15, 16, 17]]


@pytest.mark.parametrize(
    ("n", "drop_last", "even", "last0", "last1"),
    [
        (24, False, True, [[18, 19, 20]], [[21, 22, 23]]),
        (24, True, True, [[18, 19, 20]], [[21, 22, 23]]),
        (24, False, False, [[18, 19, 20]], [[21, 22, 23]]),
        (24, True, False, [[18, 19, 20]], [[21, 22, 23]]),
        (21, False, True, [[18, 19, 20]], [[0, 1, 2]]),
        (22, False, True, [[18, 19, 20]], [[21, 0, 1]]),
        (20, False, True, [[18, 19, 0]], [[1, 2, 3]]),
        (21, True, True, [], []),
        (22, True, True, [], []),
        (20, True, False, [], []),
        (21, False, False, [[18, 19, 20]], []),
        (22, False, False, [[18, 19, 20]], [[21]]),
        (20, False, False, [[18, 19]], []),
    ],
)
def test_batches_of_three_are_dealt_to_two_ranks_as_in_the_table(
    n: int, drop_last: bool, even: bool, last0: Batches, last1: Batches
) -> None:
    assert dealt(cut(n, 3, drop_last), 2, even=even) == [P0 + last0, P1 + last1]


@pytest.mark.parametrize(
    ("drop_last", "even", "expected"),
    [
        (False, True, [[[0, 1, 0]], [[1, 0, 1]]]),
        (True, True, [[], []]),
        (False, False, [[[0, 1]], []]),
    ],
)
def test_a_dataset_smaller_than_a_batch_is_dealt_as_in_the_table(
    drop_last: bool, even: bool, expected: list[Batches]
) -> None:
    assert dealt(cut(2, 3, drop_last), 2, even=even) == expected


S0: Batches = [[0, 1], [4, 5], [8, 9], [12, 13], [16, 17]]
S1: Batches = [[2, 3], [6, 7], [10, 11], [14, 15], [18, 19]]


@pytest.mark.parametrize(
    ("n", "drop_last", "even", "last0", "last1"),
    [
        (24, False, True, [[20, 21]], [[22, 23]]),
        (22, False, True, [[20, 21]], [[0, 1]]),
        (21, False, True, [[20, 0]], [[1, 2]]),
        (22, True, True, [], []),
        (21, True, True, [], []),
        (22, False, False, [[20, 21]], []),
        (21, False, False, [[20]], []),
        (23, False, False, [[20, 21]], [[22]]),
    ],
)
def test_batches_of_four_are_split_between_two_ranks_as_in_the_table(
    n: int, drop_last: bool, even: bool, last0: Batches, last1: Batches
) -> None:
    assert dealt(cut(n, 4, drop_last), 2, split=True, even=even) == [S0 + last0, S1 + last1]


def test_a_dataset_smaller_than_a_split_batch_is_dealt_as_in_the_table() -> None:
    assert dealt(cut(2, 4), 2, split=True) == [[[0, 1]], [[0, 1]]]
    assert dealt(cut(2, 4), 2, split=True, even=False) == [[[0, 1]], []]


@pytest.mark.parametrize(
    ("n", "batch_size", "world", "expected"),
    [
        (10, 2, 3, [[[0, 1], [6, 7]], [[2, 3], [8, 9]], [[4, 5], [0, 1]]]),
        (10, 3, 2, [[[0, 1, 2], [6, 7, 8]], [[3, 4, 5], [9, 0, 1]]]),
        (11, 2, 4, [[[0, 1], [8, 9]], [[2, 3], [10, 0]], [[4, 5], [1, 2]], [[6, 7], [3, 4]]]),
        (1, 4, 2, [[[0, 0, 0, 0]], [[0, 0, 0, 0]]]),
        (3, 1, 2, [[[0], [2]], [[1], [0]]]),
        (7, 2, 2, [[[0, 1], [4, 5]], [[2, 3], [6, 0]]]),
        (8, 2, 2, [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]),
        (0, 2, 2, [[], []]),
    ],
)
def test_more_worked_cases(n: int, batch_size: int, world: int, expected: list[Batches]) -> None:
    """S44: each rank gets every `num_processes`-th batch; S56: all batches have one size."""
    assert dealt(cut(n, batch_size), world) == expected


def test_uneven_and_dropped_endings_of_a_worked_case() -> None:
    assert dealt(cut(10, 2), 3, even=False) == [[[0, 1], [6, 7]], [[2, 3], [8, 9]], [[4, 5]]]
    assert dealt(cut(10, 2, True), 3) == [[[0, 1]], [[2, 3]], [[4, 5]]]
    assert dealt(cut(3, 1), 2, even=False) == [[[0], [2]], [[1]]]
    assert dealt(cut(7, 2), 2, even=False) == [[[0, 1], [4, 5]], [[2, 3], [6]]]


@pytest.mark.parametrize(
    ("n", "batch_size", "world", "expected"),
    [
        (13, 6, 3, [[[0, 1], [6, 7], [12, 0]], [[2, 3], [8, 9], [1, 2]], [[4, 5], [10, 11], [3, 4]]]),
        (5, 4, 4, [[[0], [4]], [[1], [0]], [[2], [1]], [[3], [2]]]),
    ],
)
def test_more_worked_cases_of_split_batches(n: int, batch_size: int, world: int, expected: list[Batches]) -> None:
    """S48: a split batch gives each rank its slice."""
    assert dealt(cut(n, batch_size), world, split=True) == expected


def test_an_uneven_ending_of_split_batches() -> None:
    assert dealt(cut(13, 6), 3, split=True, even=False) == [
        [[0, 1], [6, 7], [12]],
        [[2, 3], [8, 9]],
        [[4, 5], [10, 11]],
    ]


@pytest.mark.parametrize(
    ("sampler", "even", "expected"),
    [
        (Given(VARYING), False, [[VARYING[0], VARYING[2], VARYING[4]], [VARYING[1], VARYING[3]]]),
        (Given(VARYING), True, [[VARYING[0], VARYING[2], VARYING[4]], [VARYING[1], VARYING[3], [0, 1, 2]]]),
        (Given(VARYING, drop_last=True), True, [[VARYING[0], VARYING[2]], [VARYING[1], VARYING[3]]]),
        (
            Given(SEVEN),
            True,
            [[[0], [6], [12, 13]], [[1, 2], [7, 8], [0]], [[3, 4, 5], [9, 10, 11], [1, 2]]],
        ),
        (Given([[4, 5]]), True, [[[4, 5]], [[4, 5]], [[4, 5]]]),
    ],
)
def test_batches_that_vary_are_dealt_whole(sampler: Given, even: bool, expected: list[Batches]) -> None:
    """S50: a batch sampler of the user's own, without a batch size."""
    assert dealt(sampler, len(expected), even=even) == expected


def test_a_users_batch_sampler_with_a_batch_size_is_filled_up() -> None:
    """S50: a batch sampler of the user's own, with a batch size."""
    own = GivenWithSize([[9, 8, 7], [6, 5, 4], [3, 2]], 3)
    assert dealt(own, 2) == [[[9, 8, 7], [3, 2, 9]], [[6, 5, 4], [8, 7, 6]]]
    assert dealt(own, 2, even=False) == [[[9, 8, 7], [3, 2]], [[6, 5, 4]]]
    assert dealt(GivenWithSize([[9, 8], [7, 6], [5]], 2), 2, split=True) == [[[9], [7], [5]], [[8], [6], [9]]]


def test_a_batch_sampler_that_overrides_iter_keeps_its_order() -> None:
    own = LongestFirst(SequentialSampler(range(5)), 2, False)
    assert not follows_torch(own)
    assert dealt(own, 2, even=False) == [[[4], [0, 1]], [[2, 3]]]


def test_one_process_gets_every_batch() -> None:
    assert dealt(cut(6, 2), 1) == [[[0, 1], [2, 3], [4, 5]]]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: BatchSamplerShard(cut(8, 3), 2, 0, True), ["split_batches=True", "batch_size=3", "of 2. Use 4"]),
        (lambda: BatchSamplerShard(Given(VARYING), 2, 0, True), ["split_batches=True", "Given without one"]),
        (lambda: BatchSamplerShard(cut(8, 2), 2, 2), ["process_index=2 of num_processes=2", "expected 0 to 1"]),
    ],
)  # fmt: skip
def test_what_cannot_be_sharded_is_refused_in_words(make: Callable[[], object], words: list[str]) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the words are compared below
        make()
    assert [word for word in words if word not in str(error.value)] == []


def test_the_total_length_is_that_of_the_whole_job() -> None:
    assert BatchSamplerShard(cut(10, 2), 2, 0).total_length == 5


def test_the_samples_of_a_part_are_known_unless_batches_vary() -> None:
    assert BatchSamplerShard(cut(8, 4), 2, 0).rows == 4
    assert BatchSamplerShard(cut(8, 4), 2, 0, True).rows == 2
    assert BatchSamplerShard(Given(VARYING), 2, 0).rows is None


def test_the_last_batch_is_known_before_it_is_yielded() -> None:
    shard = BatchSamplerShard(cut(5, 2), 2, 1)
    for _ in range(2):
        known = [(shard.newest().last, shard.newest().tail) for _ in shard]
        assert known[-1] == (2, BatchPadding((1, 0), (2, 2)))


def test_a_length_that_lies_changes_nothing_that_is_dealt() -> None:
    sampler = BatchSampler(Liar(), 2, False)
    assert [list(BatchSamplerShard(sampler, 2, rank)) for rank in range(2)] == [[[0, 1], [4, 5]], [[2, 3], [0, 1]]]


@pytest.mark.parametrize("split", [False, True])
def test_an_endless_sampler_is_dealt_as_it_comes(split: bool) -> None:
    shard = BatchSamplerShard(BatchSampler(Endless(), 2, False), 2, 1, split)
    assert list(islice(shard, 2)) == ([[1], [3]] if split else [[2, 3], [6, 7]])


def test_a_seedable_sampler_draws_from_its_seed_and_epoch_alone() -> None:
    sampler = SeedableRandomSampler(range(20), data_seed=5)
    before = torch.get_rng_state()
    epochs = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        epochs.append(list(sampler))
        assert sampler.epoch == epoch
        assert sorted(epochs[-1]) == list(range(20))
    assert torch.equal(torch.get_rng_state(), before)
    assert len(set(map(tuple, epochs))) == 3
    torch.manual_seed(99)
    sampler.set_epoch(1)
    assert list(sampler) == epochs[1]
    assert list(SeedableRandomSampler(range(20), data_seed=6)) != epochs[0]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_seedable_sampler_of_a_plain_loader_draws_a_new_order_each_epoch(workers: int) -> None:
    """As Accelerate's does: nobody calls `set_epoch`; a pass that is left counts, as in a prepared loader."""
    sampler = SeedableRandomSampler(range(20), data_seed=5)
    loader = DataLoader(TensorDataset(torch.arange(20)), sampler=sampler, num_workers=workers, batch_size=None)
    found = [[int(one) for (one,) in loader]]
    assert next(iter(loader)) is not None
    found += [[int(one) for (one,) in loader] for _ in range(2)]
    for epoch, order in zip((0, 2, 3), found, strict=True):
        sampler.set_epoch(epoch)
        assert list(sampler) == order, epoch
    assert len(set(map(tuple, found))) == 3


@pytest.mark.parametrize("kind", [BatchSampler, LongestFirst])
def test_a_seedable_sampler_of_a_shard_draws_a_new_order_each_pass(kind: type[BatchSampler]) -> None:
    """A BatchSamplerShard may be used without `prepare`; then nobody calls `set_epoch`."""
    sampler = SeedableRandomSampler(range(20), data_seed=5)
    batches = kind(sampler, 2, False)
    shard = BatchSamplerShard(batches, 1, 0)
    found = [list(shard) for _ in range(3)]
    for epoch, order in enumerate(found):
        sampler.set_epoch(epoch)
        assert list(batches) == order, epoch
    assert len({str(order) for order in found}) == 3


def test_a_seedable_sampler_without_a_seed_takes_that_of_torch() -> None:
    torch.manual_seed(11)
    assert SeedableRandomSampler(range(9)).initial_seed == 11


@pytest.mark.parametrize(
    "wrap",
    [
        lambda inner: inner,
        lambda inner: BatchSampler(inner, 2, False),
        lambda inner: BatchSamplerShard(BatchSampler(inner, 2, False), 2, 0),
    ],
)
def test_the_sampler_that_draws_the_order_is_found_under_batch_samplers(wrap: Callable[[Any], Any]) -> None:
    inner = RandomSampler(range(4))
    assert innermost_sampler(wrap(inner)) is inner
