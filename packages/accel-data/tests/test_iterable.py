"""The worked tables of iterable datasets, and how a filled-up round is marked."""

from collections.abc import Iterable, Iterator
from itertools import count, islice
from typing import Any

import pytest
import torch
from accel_data import IterableDatasetShard
from accel_data.iterable.read_batch import ReadBatch, ReadCollate
from accel_data.iterable.stream_reader import StreamReader
from accel_data.plan import LoaderPlan
from accel_data.sharding.rank_slices import DataRank, Ending
from accel_state import BatchPadding
from suite.toy_models import RangeStream
from torch.utils.data import DataLoader, IterableDataset, default_collate


class Sized(IterableDataset[int]):
    """The numbers 0 to n - 1, with a length, and every epoch that it was told."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.epochs: list[int] = []

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.n))

    def __len__(self) -> int:
        return self.n

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return count()


def dealt(
    n: int, batch_size: int | None, world: int, *, drop_last: bool = False, split: bool = False, even: bool = True
) -> list[list[int]]:
    """What each rank gets; and `len` is right for each."""
    shards = [
        IterableDatasetShard(Sized(n), batch_size, drop_last, world, rank, split, even_batches=even)
        for rank in range(world)
    ]
    samples = [list(shard) for shard in shards]
    assert [len(shard) for shard in shards] == [len(one) for one in samples]
    return samples


def test_a_rank_skips_what_belongs_to_others() -> None:
    """S52: batches that belong to other processes are skipped."""
    assert dealt(8, 2, 2) == [[0, 1, 4, 5], [2, 3, 6, 7]]


@pytest.mark.parametrize(
    ("n", "batch_size", "world", "split", "drop_last", "expected"),
    [
        (10, 2, 2, False, False, [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 0, 1]]),
        (10, 2, 2, False, True, [[0, 1, 4, 5], [2, 3, 6, 7]]),
        (9, 4, 2, True, False, [[0, 1, 4, 5, 8, 0], [2, 3, 6, 7, 1, 2]]),
        (9, 4, 2, True, True, [[0, 1, 4, 5], [2, 3, 6, 7]]),
        (3, 4, 2, False, False, [[0, 1, 2, 0], [1, 2, 0, 1]]),
        (11, 2, 3, False, False, [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 0]]),
        (0, 2, 2, False, False, [[], []]),
    ],
)
def test_samples_are_dealt_as_in_the_table(
    n: int, batch_size: int, world: int, split: bool, drop_last: bool, expected: list[list[int]]
) -> None:
    assert dealt(n, batch_size, world, split=split, drop_last=drop_last) == expected


def test_an_uneven_ending_repeats_nothing() -> None:
    assert dealt(11, 2, 3, even=False) == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10]]
    assert dealt(7, 2, 3, even=False) == [[0, 1, 6], [2, 3], [4, 5]]


def test_without_a_batch_size_ranks_take_turns() -> None:
    assert dealt(5, None, 2) == [[0, 2, 4], [1, 3, 0]]
    assert dealt(5, None, 2, even=False) == [[0, 2, 4], [1, 3]]


def test_an_endless_dataset_is_dealt_as_it_comes() -> None:
    assert list(islice(IterableDatasetShard(Endless(), 2, False, 2, 1), 4)) == [2, 3, 6, 7]


def test_a_dataset_without_a_length_has_none_when_sharded() -> None:
    with pytest.raises(TypeError, match="RangeStream"):
        len(IterableDatasetShard(RangeStream(8), 2, False, 2, 0))


@pytest.mark.parametrize(
    ("batch_size", "found"),
    [(3, "batch_size=3 is not a round multiple of 2. Use 4"), (None, "RangeStream without one. Give it a batch_size")],
)
def test_a_batch_that_cannot_be_split_is_refused_in_words(batch_size: int | None, found: str) -> None:
    words = f"split_batches=True divides .* among 2 processes.*{found}.*split_batches=False"
    with pytest.raises(ValueError, match=words):
        IterableDatasetShard(RangeStream(8), batch_size, False, 2, 0, True)


def test_a_rank_outside_the_world_is_refused() -> None:
    with pytest.raises(ValueError, match="process_index=3 of num_processes=2: expected 0 to 1"):
        IterableDatasetShard(RangeStream(8), 2, False, 2, 3)


def test_the_epoch_is_passed_on_to_a_dataset_that_takes_it() -> None:
    dataset = Sized(4)
    IterableDatasetShard(dataset, 2, False, 2, 0).set_epoch(3)
    IterableDatasetShard(RangeStream(4), 2, False, 2, 0).set_epoch(3)
    assert dataset.epochs == [3]


def read(
    n: int, batch_size: int | None, rank: int, *, drop_last: bool = False
) -> list[tuple[Any, BatchPadding | None]]:
    """The samples of each batch of one of two ranks, and what is real in it."""
    plan = LoaderPlan(DataRank(rank, 2), ending=Ending.DROP if drop_last else Ending.REPEAT)
    return [(batch.value, batch.tail) for batch in StreamReader(Sized(n), plan, batch_size)]


def test_only_a_filled_round_has_a_tail() -> None:
    assert read(6, 2, 1) == [([2, 3], None), ([0, 1], BatchPadding((2, 0), (2, 2)))]
    assert read(3, None, 0) == [(0, None), (2, BatchPadding((1, 0), (1, 1)))]
    assert read(6, 2, 1, drop_last=True) == [([2, 3], None)]


def summed(samples: Iterable[int]) -> int:
    return sum(samples)


def test_a_collate_function_sees_samples_alone() -> None:
    tail = BatchPadding((2, 1), (2, 2))
    assert ReadCollate(summed)(ReadBatch([3, 4], 1, tail=tail)) == ReadBatch(7, 1, tail=tail)
    end = ReadBatch(None, 1, end=True)
    assert ReadCollate(summed)(end) is end


@pytest.mark.parametrize("workers", [0, 2])
def test_tails_come_through_loader_workers(workers: int) -> None:
    reader = StreamReader(Sized(5), LoaderPlan(DataRank(0, 2), readers=max(workers, 1)), 2, workers=workers)
    collate: Any = ReadCollate(default_collate)
    loader = DataLoader(reader, batch_size=None, num_workers=workers, collate_fn=collate)
    # each worker reads the whole dataset, and ends with a filled-up round of its own
    last = list(loader)[-1]
    assert last.value.tolist() == [4, 0]
    assert last.tail == BatchPadding((1, 0), (2, 2))


def test_a_batch_of_a_stream_can_be_pinned_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor + 100)  # pinning needs a GPU
    pinned = ReadBatch({"x": torch.tensor([1]), "name": "a"}, 0, tail=BatchPadding((1, 0), (1, 1))).pin_memory()
    assert (pinned.value["x"].tolist(), pinned.value["name"], pinned.tail) == ([101], "a", BatchPadding((1, 0), (1, 1)))


class Pinnable:
    """A batch of a class of the user's."""

    pinned = False

    def pin_memory(self) -> "Pinnable":
        self.pinned = True
        return self


def test_a_batch_of_a_class_of_its_own_pins_itself() -> None:
    """As plain torch asks it to."""
    pinned = ReadBatch({"graph": Pinnable()}, 0).pin_memory()
    assert pinned.value["graph"].pinned
