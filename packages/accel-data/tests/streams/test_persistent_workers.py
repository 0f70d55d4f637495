"""Loader workers that live on serve each sample of a stream once in every epoch, as in the first."""

import random
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import pytest
import torch
from accel_data import prepare_data_loader
from accel_testing import stretched
from numbers_to_load import ShardableStream
from torch import Tensor
from torch.utils.data import DataLoader, get_worker_info

N = 48
EPOCHS = 3


class DividesItself(ShardableStream):
    """Gives each loader worker a part of what it holds, as torch's documentation shows."""

    def __iter__(self) -> Iterator[Tensor]:
        worker = get_worker_info()
        index, of = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        return map(torch.tensor, self.numbers[index::of])


class Lazy(DividesItself):
    """Divides itself when the first sample is asked for, as generators and `datasets` do."""

    def __iter__(self) -> Iterator[Tensor]:
        yield from super().__iter__()


class ByEpoch(ShardableStream):
    """Says the epoch that it was told, for each number."""

    def __init__(self, numbers: Sequence[int], epoch: int = 0) -> None:
        super().__init__(numbers)
        self.epoch = torch.tensor(epoch)
        self.epoch.share_memory_()  # type: ignore[no-untyped-call] # of torch

    def set_epoch(self, epoch: int) -> None:
        self.epoch.fill_(epoch)

    def shard(self, num_shards: int, index: int) -> "ByEpoch":
        return ByEpoch(self.numbers[index::num_shards], int(self.epoch))

    def __iter__(self) -> Iterator[Tensor]:
        return (torch.tensor(100 * int(self.epoch) + number) for number in self.numbers)


def epochs_of(dataset: Any, world: int, workers: int) -> list[list[int]]:
    """What all ranks of a simulated world serve in each epoch, sorted."""
    loaders = [
        prepare_data_loader(
            DataLoader(dataset, 4, num_workers=workers, persistent_workers=True),
            num_processes=world,
            process_index=rank,
        )
        for rank in range(world)
    ]
    return [
        sorted(chain.from_iterable(batch.tolist() for loader in loaders for batch in loader)) for _ in range(EPOCHS)
    ]


@pytest.mark.grid(1)
@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("kind", [ShardableStream, DividesItself, Lazy])
def test_each_epoch_has_each_sample_once(kind: type[ShardableStream], workers: int, world: int) -> None:
    """T11: today 48, 96, 96 samples."""
    assert epochs_of(kind(range(N)), world, workers) == [[*range(N)]] * EPOCHS


def test_the_epoch_reaches_workers_that_live_on() -> None:
    told = epochs_of(ByEpoch(range(N)), 1, 2)
    assert told == [[100 * epoch + number for number in range(N)] for epoch in range(EPOCHS)]


def with_worker(samples: list[Tensor]) -> list[tuple[int, int, int]]:
    """Each sample with what torch says of the worker that collates it."""
    worker = get_worker_info()
    assert worker is not None
    return [(int(sample), worker.id, worker.num_workers) for sample in samples]


def test_what_collates_is_told_the_true_worker() -> None:
    """A `collate_fn` draws, logs or opens by the number of its worker."""
    plain = DataLoader[Any](
        ShardableStream(range(N)), 4, num_workers=2, persistent_workers=True, collate_fn=with_worker
    )
    loader = prepare_data_loader(plain)
    for _ in range(EPOCHS):
        told = list(chain.from_iterable(loader))
        assert sorted(number for number, _, _ in told) == list(range(N))
        assert {(worker, of) for _, worker, of in told} == {(0, 2), (1, 2)}


def test_an_epoch_that_was_left_does_not_show_in_the_next() -> None:
    plain = DataLoader(ShardableStream(range(N)), 4, num_workers=2, persistent_workers=True)
    loader = prepare_data_loader(plain)
    for _ in range(2):
        for _ in loader:
            break
    assert sorted(chain.from_iterable(batch.tolist() for batch in loader)) == list(range(N))


class Reshuffled(ShardableStream):
    """Shuffles by how many of its passes have ended, says where it stands, and counts for all who read to the end."""

    num_shards = 2

    def __init__(self, numbers: Sequence[int], ends: Tensor | None = None, index: int | None = None) -> None:
        super().__init__(numbers)
        self.passes = self.at = 0
        self.index = index
        #: ends of passes, by shard or else by worker
        self.ends = torch.zeros(16, dtype=torch.int64) if ends is None else ends
        self.ends.share_memory_()  # type: ignore[no-untyped-call] # of torch

    def shard(self, num_shards: int, index: int) -> "Reshuffled":
        return Reshuffled(self.numbers[index::num_shards], self.ends, index)

    def __iter__(self) -> Iterator[Tensor]:
        order = random.Random(self.passes).sample(list(self.numbers), len(self.numbers))
        while self.at < len(order):
            self.at += 1
            yield torch.tensor(order[self.at - 1])
        self.passes, self.at = self.passes + 1, 0
        worker = get_worker_info()
        self.ends[self.index or (0 if worker is None else worker.id)] += 1

    def state_dict(self) -> dict[str, int]:
        return {"passes": self.passes, "at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.passes, self.at = state["passes"], state["at"]


class Whole(Reshuffled):
    """Cannot be sharded."""

    shard = None  # type: ignore[assignment] # what `shard` is not called


def in_twos(source: Reshuffled, workers: int) -> Any:
    if not workers:
        return prepare_data_loader(DataLoader(source, 2))
    plain = DataLoader(source, 2, num_workers=workers, persistent_workers=True, prefetch_factor=8)
    return prepare_data_loader(plain)


def left_once(kind: type[Reshuffled], workers: int) -> tuple[list[list[int]], list[list[int]], Any]:
    """What a pass serves that is left when all of it was read, what three passes after it do, and the state between."""
    source = kind(range(8))
    loader = in_twos(source, workers)
    list(loader)
    ends = int(source.ends.sum())
    seen = []
    for batch in loader:
        seen.append(batch.tolist())
        if len(seen) == 2:
            break
    deadline = time.monotonic() + stretched(60)
    while workers and int(source.ends.sum()) < 2 * ends:  # all of the pass is read ahead
        assert time.monotonic() < deadline
        time.sleep(0.01)
    state = loader.state_dict()
    return seen, [[sample for batch in loader for sample in batch.tolist()] for _ in range(3)], state


@pytest.mark.grid(1)
@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("kind", [Whole, Reshuffled])
def test_a_pass_that_was_read_ahead_and_left_begins_again(kind: type[Reshuffled], workers: int) -> None:
    """As without workers, and as in a job that goes on from the state after it."""
    seen, after, state = left_once(kind, workers)
    assert after[0][: len(seen) * 2] == [sample for batch in seen for sample in batch]
    assert after[0] != after[1] != after[2]
    resumed = in_twos(kind(range(8)), workers)
    resumed.load_state_dict(state)
    assert [[sample for batch in resumed for sample in batch.tolist()] for _ in range(3)] == after


@pytest.mark.filterwarnings("ignore:.* samples are read again")
def test_a_resumed_epoch_and_those_after_it_are_whole() -> None:
    def fresh() -> Any:
        return prepare_data_loader(DataLoader(ShardableStream(range(N)), 4, num_workers=2, persistent_workers=True))

    loader, seen = fresh(), list[int]()
    for number, batch in enumerate(loader, start=1):
        seen += batch.tolist()
        if number == 5:
            state = loader.state_dict()
            break
    again = fresh()
    again.load_state_dict(state)
    rest, *others = ([one for batch in again for one in batch.tolist()] for _ in range(EPOCHS))
    assert sorted(seen + rest) == list(range(N))
    assert [sorted(one) for one in others] == [list(range(N))] * (EPOCHS - 1)
