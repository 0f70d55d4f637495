"""What a prepared loader says while it is iterated, where its batches are, and that it can be left and sent away."""

import gc
import pickle
import weakref
from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import pytest
import torch
from accel_comm.transports.single import Single
from accel_data import DataLoaderShard, prepare_data_loader
from accel_data.loaders.device_prefetch import on_device
from accel_data.resume.epoch_pass import EpochPass
from accel_state import AccumulationState, BatchPadding
from suite.toy_models import RangeDataset, RangeStream
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, Sampler, SubsetRandomSampler

Flags = list[tuple[list[int], bool, int]]


class Liar(Sampler[int]):
    """Six indices, and a length that says something else."""

    def __init__(self, says: int) -> None:
        self.says = says

    def __iter__(self) -> Iterator[int]:
        return iter(range(6))

    def __len__(self) -> int:
        return self.says


class Endless(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return (number % 6 for number in count())


class EndlessStream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return count()


class WithEpoch(Sampler[int]):
    """Indices 0 to 7, and every epoch that it was told."""

    def __init__(self) -> None:
        self.epochs: list[int] = []

    def __iter__(self) -> Iterator[int]:
        return iter(range(8))

    def __len__(self) -> int:
        return 8

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


class Named(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.tensor(index), "nested": (torch.tensor([index]), {"name": str(index)})}


def prepared(
    loader: DataLoader[Any],
    world: int = 2,
    rank: int = 0,
    accumulation: AccumulationState | None = None,
    **settings: Any,
) -> DataLoaderShard[Any]:
    shard = prepare_data_loader(loader, num_processes=world, process_index=rank, accumulation=accumulation, **settings)
    assert isinstance(shard, DataLoaderShard)
    return shard


def watched(loader: DataLoader[Any], accumulation: AccumulationState) -> Flags:
    """Each batch, with what the accumulation says while it is used."""
    return [(batch.tolist(), accumulation.end_of_dataloader, accumulation.remainder) for batch in loader]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("source", ["map", "stream"])
def test_the_last_batch_is_known_while_it_is_used_in_every_epoch(source: str, world: int, workers: int) -> None:
    accumulation = AccumulationState()
    # a stream is read by every loader worker: one of them makes the epoch that the map dataset has
    dataset: Any = RangeDataset(8 * world) if source == "map" else RangeStream(8 * world)
    count = min(workers, 1) if source == "stream" else workers
    loader = prepared(DataLoader(dataset, batch_size=2, num_workers=count), world, 0, accumulation)
    for _ in range(3):
        assert [last for _, last, _ in watched(loader, accumulation)] == [False, False, False, True]
        assert (accumulation.active, accumulation.in_dataloader, accumulation.remainder) == (None, False, -1)


@pytest.mark.parametrize("source", [RangeDataset, RangeStream])
def test_the_clock_says_what_is_real_in_the_last_batch(source: Any) -> None:
    accumulation = AccumulationState()
    loader = prepared(DataLoader(source(11), batch_size=2), 2, 1, accumulation)
    for _ in range(2):
        assert watched(loader, accumulation) == [([2, 3], False, 0), ([6, 7], False, 0), ([10, 0], True, 3)]


@pytest.mark.parametrize(("drop_last", "even"), [(True, True), (False, False)])
def test_nothing_is_left_over_where_nothing_is_repeated(drop_last: bool, even: bool) -> None:
    accumulation = AccumulationState()
    loader = prepared(DataLoader(RangeDataset(11), 2, drop_last=drop_last), 2, 0, accumulation, even_batches=even)
    assert {remainder for _, _, remainder in watched(loader, accumulation)} == {0}


def test_one_process_repeats_nothing() -> None:
    accumulation = AccumulationState()
    loader = prepared(DataLoader(RangeDataset(5), batch_size=2), 1, 0, accumulation)
    assert watched(loader, accumulation) == [([0, 1], False, 0), ([2, 3], False, 0), ([4], True, 1)]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_tail_is_whole_with_loader_workers_that_run_ahead(workers: int) -> None:
    accumulation = AccumulationState()
    loader = prepared(DataLoader(RangeDataset(11), batch_size=2, num_workers=workers), 2, 1, accumulation)
    tails = [accumulation.active.tail for _ in loader if accumulation.active is not None]
    assert tails == [None, None, BatchPadding((2, 1), (2, 2))]


def test_an_inner_loop_is_the_active_one_until_it_ends() -> None:
    accumulation = AccumulationState()
    outer = prepared(DataLoader(RangeDataset(6), batch_size=1), 2, 0, accumulation)
    inner = prepared(DataLoader(RangeDataset(3), batch_size=1), 2, 0, accumulation)
    seen = []
    for _ in outer:
        seen.append(("outer", accumulation.end_of_dataloader))
        for _ in inner:
            assert accumulation.active_dataloader is inner
            seen.append(("inner", accumulation.end_of_dataloader))
        assert accumulation.active_dataloader is outer
    inside = [("inner", False), ("inner", True)]
    assert seen == [("outer", False), *inside, ("outer", False), *inside, ("outer", True), *inside]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_new_epoch_after_a_break_is_whole(workers: int) -> None:
    accumulation = AccumulationState()
    loader = prepared(DataLoader(RangeDataset(8), batch_size=1, num_workers=workers), 2, 0, accumulation)
    for batch in loader:
        assert batch.tolist() == [0]
        break
    assert accumulation.active is None
    assert watched(loader, accumulation) == [([0], False, 0), ([2], False, 0), ([4], False, 0), ([6], True, 0)]
    assert loader.iteration == 2


@pytest.mark.parametrize("says", [0, 3, 100])
@pytest.mark.parametrize("world", [1, 2])
def test_a_length_that_lies_changes_neither_batches_nor_flags(world: int, says: int) -> None:
    """S49: the end is where the data ends, whatever a sampler says."""
    accumulation = AccumulationState()
    loader = prepared(DataLoader(RangeDataset(6), batch_size=1, sampler=Liar(says)), world, 0, accumulation)
    expected = [([index], index == 6 - world, 0) for index in range(0, 6, world)]
    assert watched(loader, accumulation) == expected


@pytest.mark.parametrize("world", [1, 2])
def test_an_endless_loader_can_be_left(world: int) -> None:
    """S50: a sampler without an end."""
    accumulation = AccumulationState()
    loaders: list[DataLoader[Any]] = [
        DataLoader(RangeDataset(6), batch_sampler=BatchSampler(Endless(), 2, False)),
        DataLoader(EndlessStream(), batch_size=2),
    ]
    for loader in loaders:
        shard = prepared(loader, world, 0, accumulation)
        step = 2 * world
        assert [batch.tolist() for batch in islice(shard, 2)] == [[0, 1], [step, step + 1]]
        gc.collect()
        assert not accumulation.in_dataloader


@pytest.mark.parametrize("world", [1, 2])
def test_persistent_workers_serve_every_epoch(world: int) -> None:
    accumulation = AccumulationState()
    loader = prepared(
        DataLoader(RangeDataset(4 * world), batch_size=2, num_workers=1, persistent_workers=True),
        world,
        0,
        accumulation,
    )
    first = watched(loader, accumulation)
    process = loader._iterator._workers[0].pid  # type: ignore[union-attr] # there is one, after a pass
    assert first == [([0, 1], False, 0), ([2 * world, 2 * world + 1], True, 0)]
    assert watched(loader, accumulation) == first
    assert loader._iterator._workers[0].pid == process  # type: ignore[union-attr] # as above


@pytest.mark.parametrize("due", [False, True])
@pytest.mark.parametrize("dispatched", [False, True])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_that_nobody_has_is_gone_at_once(workers: int, dispatched: bool, due: bool) -> None:
    """Workers that live on wait for seconds for the end of a loader that only a collection of garbage finds."""
    accumulation = AccumulationState()
    made: Any = RangeStream(8) if dispatched else RangeDataset(8)
    plain = DataLoader(made, 2, num_workers=workers, persistent_workers=workers > 0)
    loader: Any = prepare_data_loader(plain, accumulation=accumulation, dispatch_batches=dispatched, transport=Single())
    del plain
    gc.collect()
    gc.disable()
    try:
        for _ in range(2):
            for _ in loader:
                loader.state_dict()
                accumulation.due = due  # a pass that ends inside of a window is remembered
        known = weakref.ref(loader)
        del loader
        assert known() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("source", ["map", "stream", "without batches"])
def test_batches_are_moved_only_when_asked(source: str, device: torch.device) -> None:
    """S53: batches are on the device before they are yielded; `meta` stands in for an accelerator."""
    loaders: dict[str, DataLoader[Any]] = {
        "map": DataLoader(RangeDataset(4), batch_size=2),
        "stream": DataLoader(RangeStream(4), batch_size=2),
        "without batches": DataLoader(RangeDataset(4), batch_size=None),
    }
    for target in (torch.device("meta"), device):
        moved = prepared(loaders[source], device=target, put_on_device=True)
        assert {batch.device.type for batch in moved} == {target.type}
        stays = prepared(loaders[source], device=target, put_on_device=False)
        assert {batch.device.type for batch in stays} == {"cpu"}


def test_nested_batches_keep_their_form_and_what_is_no_tensor() -> None:
    """S55: dicts, tuples, nested; strings pass through."""
    batch = next(iter(prepared(DataLoader(Named(), batch_size=2), device="meta", put_on_device=True)))
    assert (batch["x"].device.type, batch["nested"][0].shape) == ("meta", (2, 1))
    assert batch["nested"][1] == {"name": ["0", "1"]}


class Recorded:
    """Something that is moved by a `to` of its own."""

    def __init__(self) -> None:
        self.went: list[tuple[Any, ...]] = []

    def to(self, *where: Any) -> "Recorded":
        self.went.append(where)
        return self


def test_whatever_has_a_to_is_moved() -> None:
    thing = Recorded()
    assert list(on_device(iter([[thing]]), EpochPass("loader"), "meta", non_blocking=True)) == [[thing]]
    assert thing.went == [(torch.device("meta"),)]


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("stream", [False, True])
def test_a_prepared_loader_survives_pickling(stream: bool, world: int) -> None:
    dataset: Any = RangeStream(5) if stream else RangeDataset(5)
    loader = prepared(DataLoader(dataset, batch_size=2), world, world - 1, AccumulationState())
    expected = [batch.tolist() for batch in loader]
    twin = pickle.loads(pickle.dumps(loader))  # its own bytes, as a spawned process gets a loader
    assert [batch.tolist() for batch in twin] == expected
    assert stream or len(twin) == len(loader)
    assert (twin.iteration, watched(twin, twin.accumulation)[-1][1]) == (2, True)


def test_a_shuffled_prepared_loader_survives_pickling() -> None:
    generator = torch.Generator().manual_seed(3)
    loader = prepared(DataLoader(RangeDataset(8), batch_size=2, shuffle=True, generator=generator))
    twin = pickle.loads(pickle.dumps(loader))  # its own bytes, as a spawned process gets a loader
    assert [batch.tolist() for batch in twin] == [batch.tolist() for batch in loader]


def test_a_prepared_loader_survives_pickling_in_a_pass() -> None:
    sampler = SubsetRandomSampler(range(8), generator=torch.Generator().manual_seed(3))
    loader = prepared(DataLoader(RangeDataset(8), batch_size=2, sampler=sampler), 1, 0, AccumulationState())
    for _ in loader:
        twin = pickle.loads(pickle.dumps(loader.share))  # its own bytes
    assert sorted(number for batch in twin for number in batch) == list(range(8))


def test_the_epoch_is_told_to_samplers_and_datasets_and_counts_passes() -> None:
    sampler = WithEpoch()
    loader = prepared(DataLoader(RangeDataset(8), batch_size=2, sampler=sampler))
    for _ in range(2):
        list(loader)
    loader.set_epoch(7)
    list(loader)
    assert sampler.epochs == [0, 1, 7, 7]
    assert loader.iteration == 8


@pytest.mark.parametrize(
    ("loader", "split", "total"),
    [
        (DataLoader(RangeDataset(16), batch_size=4), False, 8),
        (DataLoader(RangeDataset(16), batch_size=4), True, 4),
        (DataLoader(RangeStream(16), batch_size=4), False, 8),
        (DataLoader(RangeStream(16), batch_size=4), True, 4),
        (DataLoader(RangeStream(16), batch_size=None), False, None),
    ],
)
def test_the_total_batch_size_is_that_of_the_whole_job(
    loader: DataLoader[Tensor], split: bool, total: int | None
) -> None:
    """S46: the real batch size is the number of processes times the script's."""
    shards = [prepared(loader, 2, rank, split_batches=split) for rank in range(2)]
    assert [shard.total_batch_size for shard in shards] == [total, total]
    if total is not None:
        assert sum(len(next(iter(shard))) for shard in shards) == total


@pytest.mark.parametrize("world", [1, 2])
def test_the_total_length_is_that_of_the_dataset(world: int) -> None:
    assert prepared(DataLoader(RangeDataset(11), batch_size=2), world).total_dataset_length == 11


def test_a_loader_that_was_left_can_be_collected() -> None:
    accumulation = AccumulationState()
    loader = prepared(DataLoader(RangeDataset(8), batch_size=2), accumulation=accumulation)
    iterator = iter(loader)
    next(iterator)
    gone = weakref.ref(loader)
    del loader, iterator
    gc.collect()
    assert gone() is None
    assert accumulation.active is None
