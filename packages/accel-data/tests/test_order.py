"""One order on all ranks, drawn on rank 0 as plain PyTorch draws it."""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import pytest
import torch
from accel_comm.transports.torch_dist import TorchDist
from accel_data import prepare_data_loader
from accel_data.sharding.index_order import draw
from accel_data.sharding.rank_slices import DataRank, Ending
from accel_data.sharding.samplers import generator_owner
from accel_testing import MakePool
from suite.toy_models import RangeDataset
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

N = 12
Epochs = list[list[list[int]]]


class OwnSampler(Sampler[int]):
    """Randomises with a generator of its own."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(N, generator=self.generator).tolist())

    def __len__(self) -> int:
        return N


class OwnBatchSampler(Sampler[list[int]]):
    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(torch.randperm(N, generator=self.generator).view(-1, 2).tolist())

    def __len__(self) -> int:
        return N // 2


class OwnStream(IterableDataset[int]):
    def __init__(self, seed: int | None) -> None:
        self.generator = None if seed is None else torch.Generator().manual_seed(seed)

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(N, generator=self.generator).tolist())

    def __len__(self) -> int:
        return N


class Noisy(Dataset[Tensor]):
    """Item i is i with a random number, as augmentation would draw it."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Tensor:
        return torch.stack([torch.tensor(float(index)), torch.rand(())])


def seeded(seed: int | None) -> torch.Generator | None:
    return None if seed is None else torch.Generator().manual_seed(seed)


def shuffled(seed: int | None, size: int, workers: int) -> DataLoader[Any]:
    return DataLoader(RangeDataset(N), size, shuffle=True, generator=seeded(seed), num_workers=workers)


def subset(seed: int | None, size: int, workers: int) -> DataLoader[Any]:
    sampler = SubsetRandomSampler(range(N), generator=seeded(seed))
    return DataLoader(RangeDataset(N), size, sampler=sampler, num_workers=workers)


def weighted(seed: int | None, size: int, workers: int) -> DataLoader[Any]:
    sampler = WeightedRandomSampler([1.0] * N, N, replacement=False, generator=seeded(seed))
    return DataLoader(RangeDataset(N), size, sampler=sampler, num_workers=workers)


def with_replacement(seed: int | None, size: int, workers: int) -> DataLoader[Any]:
    sampler = RandomSampler(RangeDataset(N), replacement=True, num_samples=4 * N, generator=seeded(seed))
    return DataLoader(RangeDataset(N), size, sampler=sampler, num_workers=workers)


def own_sampler(seed: int | None, size: int, workers: int) -> DataLoader[Any]:
    return DataLoader(RangeDataset(N), size, sampler=OwnSampler(seed or 0), num_workers=workers)


def own_stream(seed: int | None, size: int, workers: int) -> DataLoader[Any]:
    return DataLoader(OwnStream(seed), size, num_workers=workers)


def own_batch_sampler(seed: int | None) -> DataLoader[Any]:
    return DataLoader(RangeDataset(N), batch_sampler=OwnBatchSampler(seed or 0))


Make = Callable[[int | None, int, int], DataLoader[Any]]


def three_epochs(loader: DataLoader[Any]) -> Epochs:
    return [[batch.tolist() for batch in loader] for _ in range(3)]


def drawn_here(make: Make, seed: int | None, workers: int) -> tuple[Epochs, Tensor]:
    """What a rank of this world gets of a loader for three samples, whose seeds differ from rank to rank."""
    transport = TorchDist()
    torch.manual_seed(100 + transport.rank)
    loader = make(None if seed is None else seed + transport.rank, 3, workers)
    return three_epochs(prepare_data_loader(loader, transport=transport)), torch.get_rng_state()


@pytest.mark.parametrize(
    ("make", "seed", "workers"),
    [
        (shuffled, None, 0),
        (shuffled, None, 2),
        (shuffled, 7, 0),
        (shuffled, 7, 2),
        (subset, None, 0),
        (weighted, None, 0),
        (weighted, 7, 2),
        (with_replacement, None, 0),
        (own_sampler, 7, 0),
        (own_stream, 7, 0),
    ],
)
def test_two_ranks_together_draw_what_one_process_draws(
    world: MakePool, make: Make, seed: int | None, workers: int
) -> None:
    """S59, S121, S127: seeds differ, orders agree, each epoch is new, and all is as without accel."""
    (zero, state), (one, _) = world(2).run(drawn_here, make, seed, workers)
    torch.manual_seed(100)
    plain = three_epochs(make(seed, 6, workers))
    together = [[a + b for a, b in zip(*epoch, strict=True)] for epoch in zip(zero, one, strict=True)]
    assert together == plain
    assert len({str(epoch) for epoch in plain}) == 3
    # rank 0 has drawn exactly as often as plain PyTorch
    assert torch.equal(state, torch.get_rng_state())


def own_batches_here(seed: int) -> Epochs:
    transport = TorchDist()
    return three_epochs(prepare_data_loader(own_batch_sampler(seed + transport.rank), transport=transport))


def test_a_batch_sampler_with_a_generator_is_followed(world: MakePool) -> None:
    """S127: the `generator` of a batch sampler is synchronised."""
    zero, one = world(2).run(own_batches_here, 7)
    plain = three_epochs(own_batch_sampler(7))
    assert zero == [epoch[0::2] for epoch in plain]
    assert one == [epoch[1::2] for epoch in plain]


def test_a_stream_is_followed_into_its_loader_worker(world: MakePool) -> None:
    """S127: the `generator` of an iterable dataset, read in a worker."""
    (zero, _), (one, _) = world(2).run(drawn_here, own_stream, 7, 1)
    plain = three_epochs(own_stream(7, 6, 1))
    assert [[a + b for a, b in zip(*epoch, strict=True)] for epoch in zip(zero, one, strict=True)] == plain


def stream_without_a_generator() -> tuple[Epochs, bool]:
    transport = TorchDist()
    torch.manual_seed(100)
    dataset = OwnStream(None)
    epochs = three_epochs(prepare_data_loader(DataLoader(dataset, 3), transport=transport))
    return epochs, dataset.generator is None


def test_a_stream_whose_generator_is_none_is_given_none(world: MakePool) -> None:
    """S127: what is followed is a generator; ranks whose default ones are alike agree by themselves."""
    (zero, free), (one, free_too) = world(2).run(stream_without_a_generator)
    assert free
    assert free_too
    for epoch in zip(zero, one, strict=True):
        assert sorted(chain(*epoch[0], *epoch[1])) == list(range(N))


def left_early(workers: int) -> Epochs:
    transport = TorchDist()
    torch.manual_seed(100 + transport.rank)
    loader = prepare_data_loader(shuffled(None, 2, workers), transport=transport)
    next(iter(loader))
    torch.rand(3 * transport.rank)
    return three_epochs(loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_orders_agree_after_an_epoch_that_was_left_early(world: MakePool, workers: int) -> None:
    """S121: at the start of each iteration, whatever was drawn before."""
    zero, one = world(2).run(left_early, workers)
    for epoch in zip(zero, one, strict=True):
        assert sorted(chain(*epoch[0], *epoch[1])) == list(range(N))


def augmented(workers: int, rng_types: list[str], one_seed: bool) -> list[tuple[int, float]]:
    transport = TorchDist()
    torch.manual_seed(100 if one_seed else 100 + transport.rank)
    loader = DataLoader(Noisy(), batch_size=2, shuffle=True, num_workers=workers)
    prepared = prepare_data_loader(loader, transport=transport, rng_types=rng_types)
    return [(int(index), float(noise)) for batch in prepared for index, noise in batch]


@pytest.mark.parametrize(("workers", "one_seed"), [(0, False), (2, False), (2, True)])
def test_augmentation_differs_between_ranks_while_indices_partition(
    world: MakePool, workers: int, one_seed: bool
) -> None:
    """S123: by default only the order is synchronised."""
    zero, one = world(2).run(augmented, workers, ["generator"], one_seed)
    assert sorted(index for index, _ in zero + one) == list(range(N))
    assert len({noise for _, noise in zero + one}) == N


def test_synchronising_the_main_generator_makes_augmentation_alike(world: MakePool) -> None:
    """S126: the caveat of rng_types=["torch"]."""
    zero, one = world(2).run(augmented, 0, ["torch"], False)
    assert [noise for _, noise in zero] == [noise for _, noise in one]
    assert sorted(index for index, _ in zero + one) == list(range(N))


def after_the_start(rng_types: list[str] | None, shuffle: bool) -> list[float]:
    transport = TorchDist()
    torch.manual_seed(100 + transport.rank)
    loader = DataLoader(RangeDataset(4), shuffle=shuffle)
    prepared = prepare_data_loader(loader, transport=transport, rng_types=rng_types)
    return [float(torch.rand(())) for _ in range(2) for _ in prepared]


@pytest.mark.parametrize("shuffle", [False, True])
def test_rng_types_torch_makes_random_numbers_equal(world: MakePool, shuffle: bool) -> None:
    """S125: `torch.rand` is equal on all ranks after a loader starts."""
    zero, one = world(2).run(after_the_start, ["torch", "generator"], shuffle)
    assert zero == one
    assert len(set(zero)) == 4


@pytest.mark.parametrize("rng_types", [None, ["generator"]])
def test_the_main_generator_is_left_alone_by_default(world: MakePool, rng_types: list[str] | None) -> None:
    """S123, S124: the default is the generator of the order, and only that."""
    zero, one = world(2).run(after_the_start, rng_types, True)
    assert set(zero).isdisjoint(one)


@pytest.mark.parametrize(
    ("roots", "found"),
    [
        (lambda own: (own,), True),
        (lambda own: (None, own), True),
        (lambda own: (BatchSampler(own, 2, False),), True),
        (lambda own: (SequentialSampler(range(3)),), False),
        (lambda own: (BatchSampler(SequentialSampler(range(3)), 2, False),), False),
    ],
)
def test_the_owner_of_the_order_is_found_under_batch_samplers(
    roots: Callable[[Any], tuple[Any, ...]], found: bool
) -> None:
    own = OwnSampler(0)
    assert generator_owner(*roots(own)) is (own if found else None)


def test_something_else_called_generator_is_no_owner() -> None:
    class Words:
        generator = "a text generator"

    assert generator_owner(Words()) is None


def test_at_the_last_batch_a_generator_stands_where_torch_leaves_it() -> None:
    """torch's sampler ends with a second permutation; a state of the last batch has it once, whenever it is asked."""
    plain, own = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    list(RandomSampler(range(N), generator=plain))
    order = draw(RandomSampler(range(N), generator=own), 0, 2)
    for _ in range(2):
        with order.ended():
            assert torch.equal(own.get_state(), plain.get_state())
        assert not torch.equal(own.get_state(), plain.get_state())
    list(order.deal(DataRank(0, 1), rows=2, ending=Ending.REPEAT))
    with order.ended():
        assert torch.equal(own.get_state(), plain.get_state())
