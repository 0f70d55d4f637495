"""Loader workers of all ranks draw numbers of their own, and streams an order that all ranks share."""

import random
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from accel_comm.transports.torch_dist import TorchDist
from accel_data import prepare_data_loader
from accel_data.workers import worker_start
from accel_testing import MakePool
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info


class Seeds(Dataset[Tensor]):
    """The random numbers that a loader worker draws, whatever the index."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        info = get_worker_info()
        number = -1 if info is None else info.id
        drawn = [torch.rand(()).item(), random.random(), numpy.random.rand(), float(number)]
        return torch.tensor(drawn, dtype=torch.float64)


def add_to_torch(worker_id: int) -> None:
    torch.manual_seed(1000 + worker_id)


def drawn_by_workers(init: Any) -> list[list[float]]:
    transport = TorchDist()
    torch.manual_seed(0)  # alike on all ranks
    loader = DataLoader(Seeds(), batch_size=1, num_workers=2, worker_init_fn=init)
    prepared = prepare_data_loader(loader, transport=transport)
    return [batch[0].tolist() for batch in list(prepared)[:2]]


def test_all_loader_workers_of_all_ranks_draw_different_numbers(world: MakePool) -> None:
    """S123: ranks that are seeded alike have workers that are not."""
    batches = [drawn for rank in world(2).run(drawn_by_workers, None) for drawn in rank]
    assert [number for *_, number in batches] == [0.0, 1.0, 0.0, 1.0]
    for kind in range(3):
        assert len({drawn[kind] for drawn in batches}) == 4


def test_workers_of_rank_zero_draw_as_in_plain_pytorch(world: MakePool) -> None:
    zero, _ = world(2).run(drawn_by_workers, None)
    torch.manual_seed(0)
    plain = [batch[0].tolist() for batch in DataLoader(Seeds(), batch_size=1, num_workers=2)]
    # torch seeds torch, random and numpy of its workers
    assert zero == plain[:2]


def test_the_users_own_worker_init_has_the_last_word(world: MakePool) -> None:
    zero, one = world(2).run(drawn_by_workers, add_to_torch)
    assert [drawn[0] for drawn in zero] == [drawn[0] for drawn in one]
    assert [drawn[1] for drawn in zero] != [drawn[1] for drawn in one]


def test_a_worker_seed_calls_what_comes_after_it() -> None:
    called: list[int] = []
    start: Any = worker_start(called.append, 1)
    start(5)
    assert called == [5]


class Shuffling(IterableDataset[int]):
    """A stream whose order comes from the default generator of the process that reads it."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(16).tolist())


def streamed(workers: int, dispatch: bool | None) -> list[list[int]]:
    transport = TorchDist()
    torch.manual_seed(5 + transport.rank)
    loader: Any = DataLoader(Shuffling(), batch_size=2, num_workers=workers)
    prepared = prepare_data_loader(loader, transport=transport, dispatch_batches=dispatch)
    return [[int(sample) for batch in prepared for sample in batch] for _ in range(2)]


@pytest.mark.parametrize(("workers", "dispatch"), [(0, None), (1, None), (1, False)])
def test_a_stream_in_random_order_is_served_once_over_all_ranks(
    world: MakePool, workers: int, dispatch: bool | None
) -> None:
    """S52, S121: rank 0 reads for all; where each reads, workers draw the same on all ranks."""
    zero, one = world(2).run(streamed, workers, dispatch)
    for epoch in range(2):
        assert sorted(zero[epoch] + one[epoch]) == list(range(16))
    assert zero[0] != zero[1]


def augmented(workers: int) -> list[float]:
    transport = TorchDist()
    torch.manual_seed(transport.rank)
    loader = DataLoader(Seeds(), batch_size=1, num_workers=workers)
    prepared = prepare_data_loader(loader, rng_types=["torch", "generator"], transport=transport)
    return [float(batch.flatten()[0]) for batch in prepared]


@pytest.mark.parametrize("workers", [0, 1])
def test_synchronised_generators_are_so_in_loader_workers(world: MakePool, workers: int) -> None:
    """S125, S126: rng_types=["torch"] makes augmentation the same on all ranks, in workers too."""
    zero, one = world(2).run(augmented, workers)
    assert zero == one
