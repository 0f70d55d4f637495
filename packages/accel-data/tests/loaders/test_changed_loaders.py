"""What a script changes of a loader after `prepare` is as in plain PyTorch, or refused in words."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import pytest
import torch
from accel_comm import PeerFailed
from accel_comm.transports.torch_dist import TorchDist
from accel_data import prepare_data_loader
from accel_data.workers import WorkerStart
from accel_testing import MakePool
from torch.utils.data import DataLoader, Dataset, IterableDataset, SequentialSampler, WeightedRandomSampler

SAMPLES = 16


class Table(Dataset[int]):
    def __init__(self) -> None:
        self.rows, self.scale = list(range(SAMPLES)), 1

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> int:
        return self.rows[index] * self.scale


class Stream(IterableDataset[int]):
    def __init__(self) -> None:
        self.scale, self.part = 1, slice(None)

    def __iter__(self) -> Iterator[int]:
        return (number * self.scale for number in list(range(SAMPLES))[self.part])


class Shards(Stream):
    """A stream that can be divided, into copies of itself."""

    def shard(self, num_shards: int, index: int) -> Shards:
        twin = copy.copy(self)
        twin.part = slice(index, None, num_shards)
        return twin


class EpochShards(Shards):
    def set_epoch(self, epoch: int) -> None:
        pass


def numbers(generator: int) -> torch.Generator:
    return torch.Generator().manual_seed(generator)


LOADERS: dict[str, Callable[[], DataLoader[Any]]] = {
    "in order": lambda: DataLoader(Table(), 4),
    "shuffled": lambda: DataLoader(Table(), 4, shuffle=True, generator=numbers(1)),
    "weighted": lambda: DataLoader(
        Table(), 4, sampler=WeightedRandomSampler([1.0] * SAMPLES, SAMPLES, generator=numbers(1))
    ),
    "without batches": lambda: DataLoader(Table(), None, sampler=SequentialSampler(range(8))),
    "stream": lambda: DataLoader(Stream(), 4),
    "shards": lambda: DataLoader(Shards(), 4),
    "shards of epochs": lambda: DataLoader(EpochShards(), 4),
}


def other_collate(loader: Any) -> None:
    loader.collate_fn = lambda samples: torch.as_tensor(samples) + 100


def collate_around(loader: Any) -> None:
    inner = loader.collate_fn
    loader.collate_fn = lambda samples: inner(samples) * 2


def scaled(loader: Any) -> None:
    loader.dataset.scale += 9


def grown(loader: Any) -> None:
    loader.dataset.rows += range(100, 108)


def larger_batches(loader: Any) -> None:
    loader.batch_sampler.batch_size = 8


def other_sampler(loader: Any) -> None:
    loader.batch_sampler.sampler = SequentialSampler(range(8))


def other_weights(loader: Any) -> None:
    loader.sampler.weights = torch.tensor([0.0] * 8 + [1.0] * 8)
    loader.sampler.num_samples = 8


def other_generator(loader: Any) -> None:
    loader.sampler.generator = numbers(5)


def other_range(loader: Any) -> None:
    loader.sampler.data_source = range(4)


EXACT = [
    *((kind, other_collate) for kind in LOADERS),
    *((kind, collate_around) for kind in LOADERS),
    *((kind, scaled) for kind in LOADERS if kind != "shards"),
    *((kind, grown) for kind in ("in order", "shuffled")),
    *((kind, larger_batches) for kind in ("in order", "shuffled", "weighted")),
    *((kind, other_sampler) for kind in ("in order", "shuffled", "weighted")),
    *((kind, other_generator) for kind in ("shuffled", "weighted")),
    ("weighted", other_weights),
    ("without batches", other_range),
]


def two_epochs(loader: DataLoader[Any], change: Callable[[Any], None]) -> list[list[int]]:
    """The batches of the epoch after the change."""
    list(loader)
    change(loader)
    return [torch.as_tensor(batch).reshape(-1).tolist() for batch in loader]


def prepared(kind: str, rank: int, ranks: int) -> DataLoader[Any]:
    whole = False if kind == "stream" else None
    return prepare_data_loader(LOADERS[kind](), num_processes=ranks, process_index=rank, dispatch_batches=whole)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("kind", "change"), EXACT)
def test_a_change_of_a_loader_is_as_in_plain_pytorch(kind: str, change: Callable[[Any], None], ranks: int) -> None:
    """Shards are read in turn: two ranks have batches of other samples, and together the same."""
    wanted = two_epochs(LOADERS[kind](), change)
    found = [two_epochs(prepared(kind, rank, ranks), change) for rank in range(ranks)]
    batches = [batch for turn in zip(*found, strict=True) for batch in turn]
    if kind.startswith("shards") and ranks > 1:
        assert sorted(chain(*batches)) == sorted(chain(*wanted))
    else:
        assert batches == wanted


def less_at_the_end(loader: Any) -> None:
    loader.batch_sampler.drop_last = True


def more_workers(loader: Any) -> None:
    loader.num_workers = 2


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("shards", scaled, "scale of Shards changed after the stream was cut into shards"),
        ("in order", less_at_the_end, "drop_last of BatchSampler was changed after prepare"),
        ("stream", more_workers, "this stream was divided among no loader workers"),
        ("in order", lambda loader: setattr(loader, "batch_size", 8), "batch_size attribute should not be set"),
        ("stream", lambda loader: setattr(loader, "dataset", Stream()), "dataset attribute should not be set"),
    ],
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_change_that_cannot_be_followed_is_refused(
    kind: str, change: Callable[[Any], None], words: str, ranks: int
) -> None:
    for rank in range(ranks):
        with pytest.raises(ValueError, match=words):
            two_epochs(prepared(kind, rank, ranks), change)


def dispatched(change: Callable[[Any], None], split: bool) -> list[list[int]] | str:
    loader = prepare_data_loader(
        LOADERS["in order"](), dispatch_batches=True, split_batches=split, transport=TorchDist()
    )
    try:
        return two_epochs(loader, change)
    except (ValueError, PeerFailed) as error:
        return str(error)


def odd_batches(loader: Any) -> None:
    loader.batch_sampler.batch_size = 5


def test_changes_reach_the_rank_that_reads_for_all(world: MakePool) -> None:
    two = world(2)
    collated = two.run(dispatched, other_collate, False)
    assert collated == [[[100, 101, 102, 103], [108, 109, 110, 111]], [[104, 105, 106, 107], [112, 113, 114, 115]]]
    for words in two.run(dispatched, odd_batches, True):
        assert "batch_size=5 is not a round multiple of 2" in words


def test_a_batch_size_that_ranks_cannot_divide_is_refused_later() -> None:
    loader: Any = prepare_data_loader(DataLoader(Table(), 4), num_processes=2, process_index=1, split_batches=True)
    loader.batch_sampler.batch_size = 5
    with pytest.raises(ValueError, match="batch_size=5 is not a round multiple of 2"):
        list(loader)


def test_another_start_of_workers_keeps_the_seeds_of_the_rank() -> None:
    called: list[int] = []
    loader: Any = prepare_data_loader(DataLoader(Table(), 4), num_processes=2, process_index=1)
    torch.manual_seed(3)
    loader.worker_init_fn(0)
    wanted = torch.initial_seed()
    loader.worker_init_fn = called.append
    assert isinstance(loader.worker_init_fn, WorkerStart)
    torch.manual_seed(3)
    loader.worker_init_fn(7)
    assert (torch.initial_seed(), called) == (wanted, [7])
    assert wanted != 3


def test_a_reader_is_sent_to_workers_with_its_stream() -> None:
    loader = prepared("shards", 0, 2)
    loader.dataset.scale = 5  # type: ignore[attr-defined] # of the stream
    sent = pickle.loads(pickle.dumps(loader.dataset))
    assert sent.dataset.scale == sent.scale == 5
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = sent.nothing
