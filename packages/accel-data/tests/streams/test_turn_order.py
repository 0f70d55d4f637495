"""Samples come of the logical shards in turn, also after shards have ended, live and resumed."""

import warnings
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import pytest
import torch
from accel_data import prepare_data_loader
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

#: unlike lengths: shards end in the middle of a turn, side by side, and at once
LENGTHS = {
    "the second of four": [3, 1, 3, 2],
    "two in one turn": [5, 2, 2, 4, 6],
    "the first, then the last": [1, 4, 5, 2],
    "one that is empty": [2, 0, 4],
}


class Shards(IterableDataset[Tensor]):
    """Sample i of shard s is 100 * s + i."""

    def __init__(self, lengths: Sequence[int], only: int | None = None) -> None:
        self.lengths = lengths
        self.num_shards = len(lengths)
        self.only = only

    def shard(self, num_shards: int, index: int) -> "Shards":
        assert num_shards == self.num_shards
        return Shards(self.lengths, index)

    def __iter__(self) -> Iterator[Tensor]:
        chosen = range(self.num_shards) if self.only is None else [self.only]
        return (torch.tensor(100 * shard + number) for shard in chosen for number in range(self.lengths[shard]))


def in_turn(lengths: Sequence[int]) -> list[int]:
    """The documented order: the first sample of each shard, then the second of each that has one."""
    return [
        100 * shard + number
        for number in range(max(lengths))
        for shard, length in enumerate(lengths)
        if number < length
    ]


def loader_of(lengths: Sequence[int], size: int) -> Any:
    return prepare_data_loader(DataLoader(Shards(lengths), size))


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_the_turn_passes_on_when_a_shard_has_ended(lengths: list[int], size: int) -> None:
    assert list(chain.from_iterable(batch.tolist() for batch in loader_of(lengths, size))) == in_turn(lengths)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_a_pass_resumed_at_any_batch_goes_on_in_turn(lengths: list[int], size: int) -> None:
    whole = [batch.tolist() for batch in loader_of(lengths, size)]
    for stop in range(1, len(whole)):
        broken, resumed = loader_of(lengths, size), loader_of(lengths, size)
        for number, _ in enumerate(broken, start=1):
            if number == stop:
                resumed.load_state_dict(broken.state_dict())
                break
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # these shards are read again up to their places
            assert [batch.tolist() for batch in resumed] == whole[stop:]
