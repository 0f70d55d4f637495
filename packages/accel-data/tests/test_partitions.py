"""T2, T29: ranks share one order, whatever they were seeded with, and no two loader workers share a seed."""

import random
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy
import pytest
import torch
from accel_comm.transports.torch_dist import TorchDist
from accel_data import prepare_data_loader
from accel_testing import MakePool
from suite.soak import Cases
from suite.toy_models import RangeDataset
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

N = 37


class ByPython(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(random.sample(range(N), N))

    def __len__(self) -> int:
        return N


def script(kind: str, workers: int) -> DataLoader[Any]:
    if kind == "shuffled":
        return DataLoader(RangeDataset(N), 3, shuffle=True, num_workers=workers)
    return DataLoader(RangeDataset(N), 3, sampler=ByPython(), num_workers=workers)


def unseeded_runs(kind: str, workers: int, runs: int) -> list[list[list[int]]]:
    """What this rank is served in two epochs of each run, none of which has a seed."""
    found = []
    for _ in range(runs):
        torch.seed()
        random.seed()
        loader = prepare_data_loader(script(kind, workers), transport=TorchDist(), ending="exact")
        accumulation = loader.accumulation  # type: ignore[attr-defined] # a prepared loader has it
        served = []
        for _ in range(2):
            ids: list[int] = []
            for batch in loader:
                tail = accumulation.active.tail
                ids += batch.tolist()[: None if tail is None else tail.real[TorchDist().rank]]
            served.append(ids)
            torch.rand(TorchDist().rank)
            random.random()
        found.append(served)
    return found


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "workers"), [("shuffled", 0), ("shuffled", 2), ("by python", 0)])
def test_ranks_without_a_seed_divide_each_epoch(world: MakePool, cases: Cases, kind: str, workers: int) -> None:
    """T2: 50 of 50 runs; the union is everything, and nothing comes twice."""
    runs = len(cases(50 if workers == 0 else 4, 50))
    orders = set()
    for epochs in zip(*world(2).run(unseeded_runs, kind, workers, runs, timeout_s=90), strict=True):
        for parts in zip(*epochs, strict=True):
            assert sorted(chain(*parts)) == list(range(N))
            orders.add(str(parts))
    assert len(orders) == 2 * runs


class Seeds(Dataset[Tensor]):
    """Item i is i, with the seed of the loader worker that reads it, and numbers that it draws."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Tensor:
        drawn = [torch.rand(()).item(), random.random(), numpy.random.rand()]
        return torch.tensor([index, torch.initial_seed() % 2**40, *drawn], dtype=torch.float64)


class SeedStream(IterableDataset[Tensor]):
    def __init__(self, of: int = 1, index: int = 0) -> None:
        self.of, self.index = of, index

    def shard(self, num_shards: int, index: int) -> "SeedStream":
        return SeedStream(num_shards, index)

    def __iter__(self) -> Iterator[Tensor]:
        return (Seeds()[number] for number in range(self.index, 24, self.of))


LoaderPass = list[list[float]]


def seeded_epochs(kind: str, workers: int, seeds: str, state: Any, stop: int | None) -> tuple[list[LoaderPass], Any]:
    """The samples of two epochs, or of the first `stop` batches of one and the state after them."""
    transport = TorchDist()
    seed = {"same": 5, "each its own": 5 + transport.rank, "a new process": 99 + transport.rank}[seeds]
    torch.manual_seed(seed)
    dataset: Any = Seeds() if kind == "map" else SeedStream()
    loader: Any = prepare_data_loader(
        DataLoader(dataset, 2, shuffle=kind == "map", num_workers=workers), transport=transport
    )
    if state is not None:
        loader.load_state_dict(state)
    epochs: list[LoaderPass] = []
    for _ in range(2):
        epochs.append([])
        for number, batch in enumerate(loader, start=1):
            epochs[-1] += batch.tolist()
            if number == stop:
                return epochs, loader.state_dict()
    return epochs, loader.state_dict()


def seeds_of(epoch: LoaderPass) -> set[float]:
    return {sample[1] for sample in epoch}


@pytest.mark.filterwarnings("ignore:.* samples are read again")
@pytest.mark.grid(1)
@pytest.mark.parametrize("seeds", ["same", "each its own"])
@pytest.mark.parametrize("kind", ["map", "shards"])
def test_loader_workers_have_seeds_of_their_own_that_survive_a_resume(world: MakePool, kind: str, seeds: str) -> None:
    """T29: two processes with two loader workers each."""
    unbroken = [epochs for epochs, _ in world(2).run(seeded_epochs, kind, 2, seeds, None, None)]
    for epoch in zip(*unbroken, strict=True):
        assert [len(seeds_of(part)) for part in epoch] == [2, 2]
        assert len(set().union(*map(seeds_of, epoch))) == 4
        assert sorted(sample[0] for part in epoch for sample in part) == list(range(24))
        for drawn in (2, 3, 4):
            assert len({sample[drawn] for part in epoch for sample in part}) == 24
    assert not seeds_of(unbroken[0][0]) & seeds_of(unbroken[0][1])

    broken = world(2).run(seeded_epochs, kind, 2, seeds, None, 3)
    again = world(2).run(seeded_epochs, kind, 2, "a new process", broken[0][1], None)
    for rank in range(2):
        first, second = unbroken[rank]
        (before,), (after, following) = broken[rank][0], again[rank][0]
        assert [sample[0] for sample in before + after] == [sample[0] for sample in first]
        assert seeds_of(after) == seeds_of(before) == seeds_of(first)
        # another epoch of the new process is the one of the old
        assert following == second
