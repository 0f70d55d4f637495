"""Rank 0 reads, the others receive: real worlds of two processes."""

import pickle
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import pytest
import torch
from accel_comm import PeerFailed
from accel_comm.transports.point_to_point import TorchPointToPoint
from accel_comm.transports.single import Single
from accel_comm.transports.torch_dist import TorchDist
from accel_data import DataLoaderDispatcher, Ending, prepare_data_loader, skip_first_batches
from accel_data.loaders.dispatch_message import slices_of
from accel_state import AccumulationState, BatchPadding
from accel_testing import MakePool
from suite.toy_models import RangeDataset, RangeStream
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler

Seen = list[tuple[list[int], bool, int]]


class Broken(Dataset[Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        if index == 6:
            raise OSError("shard 6 is unreadable")
        return torch.tensor(index)


class Pairs(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.tensor(index), "pair": (torch.tensor([index, index]), torch.tensor(-index))}


class Growing(IterableDataset[Tensor]):
    """Every sample is longer than the one before."""

    def __iter__(self) -> Iterator[Tensor]:
        return (torch.zeros(length) for length in range(1, 5))


class Sized(IterableDataset[Tensor]):
    def __len__(self) -> int:
        return 11

    def __iter__(self) -> Iterator[Tensor]:
        return (torch.tensor(number) for number in range(11))


def dispatched(loader: DataLoader[Any], **settings: Any) -> DataLoaderDispatcher[Any]:
    prepared = prepare_data_loader(
        loader,
        dispatch_batches=True,
        transport=settings.pop("transport", None) or TorchDist(),
        accumulation=settings.pop("accumulation", None),
        **settings,
    )
    assert isinstance(prepared, DataLoaderDispatcher)
    return prepared


def watched(loader: DataLoaderDispatcher[Any]) -> Seen:
    return [(batch.tolist(), loader.accumulation.end_of_dataloader, loader.accumulation.remainder) for batch in loader]


def two_epochs(
    source: str, n: int, size: int, split: bool, drop_last: bool, workers: int
) -> tuple[Seen, Seen, int | None, int]:
    dataset: Any = RangeDataset(n) if source == "map" else RangeStream(n)
    loader = dispatched(DataLoader(dataset, size, drop_last=drop_last, num_workers=workers), split_batches=split)
    first, second = watched(loader), watched(loader)
    read = len(dataset.reads) if source == "map" else 0
    return first, second, len(loader) if source == "map" else None, read


@pytest.mark.parametrize(
    ("source", "n", "size", "split", "drop_last", "zero", "one", "real"),
    [
        ("map", 11, 2, False, False, [[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10, 0]], 3),
        ("map", 10, 2, False, True, [[0, 1], [4, 5]], [[2, 3], [6, 7]], 0),
        ("map", 9, 4, True, False, [[0, 1], [4, 5], [8]], [[2, 3], [6, 7], [0]], 1),
        ("map", 10, 4, True, True, [[0, 1], [4, 5]], [[2, 3], [6, 7]], 0),
        ("map", 8, 2, False, False, [[0, 1], [4, 5]], [[2, 3], [6, 7]], 0),
        ("map", 1, 2, False, False, [[0]], [[0]], 1),
        ("map", 0, 2, False, False, [], [], 0),
        ("stream", 11, 2, False, False, [[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10, 0]], 3),
        ("stream", 10, 2, False, True, [[0, 1], [4, 5]], [[2, 3], [6, 7]], 0),
        ("stream", 0, 2, False, False, [], [], 0),
    ],
)
def test_rounds_are_dispatched_as_in_the_table(
    world: MakePool,
    source: str,
    n: int,
    size: int,
    split: bool,
    drop_last: bool,
    zero: list[list[int]],
    one: list[list[int]],
    real: int,
) -> None:
    """S47, S48, S49, S52, S56: who gets what, what is the last, what is real, and how long it is."""
    results = world(2).run(two_epochs, source, n, size, split, drop_last, 0)
    for rank, (expected, result) in enumerate(zip([zero, one], results, strict=True)):
        first, second, length, read = result
        assert (
            first
            == second
            == [
                (batch, number == len(expected), real if number == len(expected) else 0)
                for number, batch in enumerate(expected, start=1)
            ]
        )
        assert length == (len(expected) if source == "map" else None)
        assert (read > 0) == (rank == 0 and source == "map" and n > 0)


def test_only_rank_zero_has_loader_workers(world: MakePool) -> None:
    zero, one = world(2).run(two_epochs, "map", 11, 2, False, False, 2)
    assert [batch for batch, *_ in zero[0]] == [[0, 1], [4, 5], [8, 9]]
    assert [batch for batch, *_ in one[0]] == [[2, 3], [6, 7], [10, 0]]


def lengths() -> list[int]:
    return [
        len(dispatched(DataLoader(Sized(), batch_size=2))),
        len(dispatched(DataLoader(Sized(), batch_size=2, drop_last=True))),
        len(dispatched(DataLoader(Sized(), batch_size=2), split_batches=True)),
    ]


def test_the_length_of_a_sized_stream_is_right_on_every_rank(world: MakePool) -> None:
    """S49"""
    assert world(2).run(lengths) == [[3, 2, 6]] * 2


def shuffled() -> list[list[int]]:
    torch.manual_seed(100 + TorchDist().rank)
    loader = dispatched(DataLoader(RangeDataset(8), batch_size=2, shuffle=True))
    return [[index for batch in loader for index in batch.tolist()] for _ in range(2)]


def test_the_order_is_that_of_rank_zero_alone(world: MakePool) -> None:
    """S59: seeds differ, epochs partition, and each is new."""
    zero, one = world(2).run(shuffled)
    torch.manual_seed(100)
    plain = DataLoader(RangeDataset(8), batch_size=4, shuffle=True)
    for epoch in range(2):
        batches = [batch.tolist() for batch in plain]
        assert zero[epoch] == batches[0][:2] + batches[1][:2]
        assert one[epoch] == batches[0][2:] + batches[1][2:]
    assert zero[0] != zero[1]


def structures() -> Any:
    (batch,) = dispatched(DataLoader(Pairs(), batch_size=2))
    return batch


def test_nested_batches_are_joined_cut_and_filled_leaf_by_leaf(world: MakePool) -> None:
    """S55"""
    zero, one = world(2).run(structures)
    assert zero["x"].tolist() == [0, 1]
    assert one["x"].tolist() == [2, 0]
    assert [leaf.tolist() for leaf in one["pair"]] == [[[2, 2], [0, 0]], [-2, 0]]


def on_meta() -> set[str]:
    return {batch.device.type for batch in dispatched(DataLoader(RangeDataset(4)), device="meta", put_on_device=True)}


def test_dispatched_batches_are_moved_to_the_device(world: MakePool) -> None:
    """S53: `meta` stands in for an accelerator."""
    assert world(2).run(on_meta) == [{"meta"}, {"meta"}]


def left_early() -> tuple[list[int], Seen, bool]:
    loader = dispatched(DataLoader(RangeDataset(8), batch_size=2))
    for batch in loader:
        first: list[int] = batch.tolist()
        break
    return first, watched(loader), loader.accumulation.in_dataloader


def test_a_new_epoch_after_a_break_is_whole(world: MakePool) -> None:
    zero, one = world(2).run(left_early)
    assert zero == ([0, 1], [([0, 1], False, 0), ([4, 5], True, 0)], False)
    assert one == ([2, 3], [([2, 3], False, 0), ([6, 7], True, 0)], False)


def read_broken() -> tuple[list[list[int]], str]:
    seen = []
    try:
        for batch in dispatched(DataLoader(Broken(), batch_size=1)):
            seen.append(batch.tolist())
    except (OSError, PeerFailed) as error:
        return seen, f"{type(error).__name__}: {error}"
    return seen, "nothing was raised"


def test_a_dataset_that_fails_on_rank_zero_fails_everywhere_with_its_words(world: MakePool) -> None:
    """Nobody waits for a round that will not come."""
    zero, one = world(2).run(read_broken)
    assert zero == ([[0], [2]], "OSError: shard 6 is unreadable")
    words = "PeerFailed: rank 0 could not read the next batch: OSError: shard 6 is unreadable"
    assert one == ([[1], [3]], words)


def read_growing() -> list[tuple[list[int], int]]:
    loader = dispatched(DataLoader(Growing(), batch_size=1))
    return [(list(batch.shape), loader.accumulation.remainder) for batch in loader]


def test_batches_that_cannot_be_joined_are_handed_on_whole(world: MakePool) -> None:
    """Batches of one round may differ in size; a rank for which none is left gets one that does not count."""
    zero, one = world(2).run(read_growing)
    assert zero == [([1, 1], 0), ([1, 3], 0)]
    assert one == [([1, 2], 0), ([1, 4], 0)]


def refusals() -> list[str]:
    texts = []
    for loader in (DataLoader(RangeDataset(6), batch_size=3), DataLoader(RangeStream(6), batch_size=None)):
        try:
            dispatched(loader, split_batches=True)
        except ValueError as error:
            texts.append(str(error))
    return texts


def test_a_batch_that_cannot_be_split_is_refused_on_every_rank(world: MakePool) -> None:
    """S48: a split that does not divide would repeat samples in every batch."""
    for texts in world(2).run(refusals):
        assert "batch_size=3 is not a round multiple of 2" in texts[0]
        assert "split_batches=True" in texts[0]
        assert "batch_size" in texts[1]
        assert len(texts) == 2


def through_pickle() -> list[list[int]]:
    sent = pickle.dumps(dispatched(DataLoader(RangeDataset(5), batch_size=2)))
    return [batch.tolist() for batch in pickle.loads(sent)]


def test_a_dispatcher_survives_pickling(world: MakePool) -> None:
    assert world(2).run(through_pickle) == [[[0, 1], [4]], [[2, 3], [0]]]


def by_hand() -> str:
    with pytest.raises(ValueError, match="for 2 processes: it needs the plan of all of them") as refused:
        DataLoaderDispatcher(RangeDataset(4), transport=TorchDist())
    return str(refused.value)


def test_one_made_by_hand_for_several_processes_is_refused(world: MakePool) -> None:
    assert all("dispatch_batches=True" in words for words in world(2).run(by_hand))


def test_dispatching_needs_the_processes_to_send_to() -> None:
    loader = DataLoader(RangeDataset(4))
    wrongs: list[dict[str, Any]] = [
        {"num_processes": 2, "process_index": 0},
        {"num_processes": 2, "transport": Single()},
    ]
    for wrong in wrongs:
        with pytest.raises(ValueError, match=r"dispatch_batches=True sends batches between processes: .* transport"):
            prepare_data_loader(loader, dispatch_batches=True, **wrong)


def test_one_process_has_nobody_to_send_to() -> None:
    loader = prepare_data_loader(DataLoader(RangeDataset(3)), dispatch_batches=True, transport=Single())
    assert isinstance(loader, DataLoaderDispatcher)
    assert [batch.tolist() for batch in loader] == [[0], [1], [2]]


class Epochs(RandomSampler):
    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def test_the_epoch_is_told_to_a_sampler_that_takes_it() -> None:
    sampler = Epochs(range(4))
    loader: DataLoaderDispatcher[Tensor] = DataLoaderDispatcher(
        RangeDataset(4), transport=Single(), accumulation=AccumulationState(), sampler=sampler, batch_size=2
    )
    loader.set_epoch(5)
    assert sampler.epoch == 5
    assert loader.iteration == 5


def test_no_round_is_filled_with_more_than_it_lacks() -> None:
    """At most world - 1 samples are repeated, from the first round on."""
    start = [torch.arange(8)]
    parts, tail = slices_of([torch.tensor([8, 9, 10])], start, 4, Ending.REPEAT)
    assert [part.tolist() for part in parts] == [[8], [9], [10], [0]]
    assert tail == BatchPadding((1, 1, 1, 0), (1, 1, 1, 1))
    alone, _ = slices_of([torch.tensor([5])], [torch.tensor([5])], 4, Ending.REPEAT)
    assert [part.tolist() for part in alone] == [[5]] * 4
    assert slices_of(start, start, 4, Ending.REPEAT)[1] is None


def drawn_after_the_start() -> list[float]:
    transport = TorchDist()
    torch.manual_seed(transport.rank)
    loader = dispatched(DataLoader(RangeDataset(4)), rng_types=["torch", "generator"])
    next(iter(loader))
    drawn: list[float] = torch.rand(3).tolist()
    return drawn


def test_default_generators_are_made_equal_on_request(world: MakePool) -> None:
    """S125: rng_types holds for dispatched loaders too."""
    zero, one = world(2).run(drawn_after_the_start)
    assert zero == one


def test_unequal_parts_cannot_be_dispatched() -> None:
    with pytest.raises(ValueError, match=r"dispatch_batches=True gives all processes equal parts"):
        dispatched(DataLoader(RangeDataset(4)), even_batches=False, transport=Single())


def messages_of_a_pass(size: int) -> dict[str, int]:
    transport = TorchDist()
    loader = prepare_data_loader(DataLoader(RangeDataset(size), 2), transport=transport, dispatch_batches=True)
    owners = dict.fromkeys(["broadcast_object", "exchange", "broadcast"], TorchDist) | dict.fromkeys(
        ["scatter", "scatter_tensors"], TorchPointToPoint
    )
    with ExitStack() as stack:
        calls = {
            name: stack.enter_context(patch.object(owner, name, autospec=True, side_effect=getattr(owner, name)))
            for name, owner in owners.items()
        }
        for _ in loader:
            pass
        return {name: call.call_count for name, call in calls.items() if call.call_count}


def test_a_round_is_one_message(world: MakePool) -> None:
    """100 rounds, and one message that says that the pass has begun."""
    assert world(2).run(messages_of_a_pass, 400) == [{"broadcast_object": 1, "scatter": 100}] * 2


def changed_in_place() -> list[list[float]]:
    loader = prepare_data_loader(
        DataLoader(RangeDataset(11), 2, collate_fn=lambda samples: torch.tensor(samples, dtype=torch.float32)),
        transport=TorchDist(),
        dispatch_batches=True,
    )
    served = []
    for batch in loader:
        served.append(batch.tolist())
        batch.mul_(0).add_(-7)
    return served


def test_what_fills_up_is_not_what_the_script_made_of_it(world: MakePool) -> None:
    first, second = world(2).run(changed_in_place)
    assert (first[-1], second[-1]) == ([8, 9], [10, 0])


class Counted(Dataset[Tensor]):
    """Notes which samples were read."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        self.read.append(index)
        return torch.tensor(index)


def without_two() -> tuple[list[list[int]], list[int]]:
    transport, dataset = TorchDist(), Counted(12)
    loader = prepare_data_loader(DataLoader(dataset, 2), transport=transport, dispatch_batches=True)
    return [batch.tolist() for batch in skip_first_batches(loader, 2)], dataset.read


def test_skipped_samples_are_not_read(world: MakePool) -> None:
    (first, read), (second, nothing) = world(2).run(without_two)
    assert (first, second) == ([[8, 9]], [[10, 11]])
    assert (read, nothing) == ([8, 9, 10, 11], [])
