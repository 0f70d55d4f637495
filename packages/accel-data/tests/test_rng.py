"""Random numbers over ranks: equal where they must be, different where they should be."""

import random
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from accel_data import RNGType, prepare_data_loader, set_seed, synchronize_rng_state, synchronize_rng_states
from accel_data.rng import rng_types_of
from accel_data.workers.worker_start import seeded
from accel_state.devices.cpu import Cpu
from accel_state.transports.single import Single
from accel_state.transports.torch_dist import TorchDist
from accel_testing import MakeWorld
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


def test_all_loader_workers_of_all_ranks_draw_different_numbers(world: MakeWorld) -> None:
    """S123: ranks that are seeded alike have workers that are not."""
    batches = [drawn for rank in world(2).run(drawn_by_workers, None) for drawn in rank]
    assert [number for *_, number in batches] == [0.0, 1.0, 0.0, 1.0]
    for kind in range(3):
        assert len({drawn[kind] for drawn in batches}) == 4


def test_workers_of_rank_zero_draw_as_in_plain_pytorch(world: MakeWorld) -> None:
    zero, _ = world(2).run(drawn_by_workers, None)
    torch.manual_seed(0)
    plain = [batch[0].tolist() for batch in DataLoader(Seeds(), batch_size=1, num_workers=2)]
    # torch seeds torch, random and numpy of its workers
    assert zero == plain[:2]


def test_the_users_own_worker_init_has_the_last_word(world: MakeWorld) -> None:
    zero, one = world(2).run(drawn_by_workers, add_to_torch)
    assert [drawn[0] for drawn in zero] == [drawn[0] for drawn in one]
    assert [drawn[1] for drawn in zero] != [drawn[1] for drawn in one]


def test_a_worker_seed_calls_what_comes_after_it() -> None:
    called: list[int] = []
    seeded(1, called.append)(5)
    assert called == [5]


def random_numbers() -> list[float]:
    return [float(torch.rand(())), random.random(), numpy.random.rand()]


def synchronised(names: list[str]) -> tuple[float, float]:
    transport = TorchDist()
    torch.manual_seed(100 + transport.rank)
    own = torch.Generator().manual_seed(200 + transport.rank)
    synchronize_rng_states(names, own, transport=transport)
    return float(torch.rand(())), float(torch.rand((), generator=own))


@pytest.mark.parametrize(
    ("names", "main", "own"), [([], 2, 2), (["torch"], 1, 2), (["generator"], 2, 1), (["torch", "generator"], 1, 1)]
)
def test_named_generators_are_put_where_rank_zero_stands(
    world: MakeWorld, names: list[str], main: int, own: int
) -> None:
    """S122: a public utility synchronises generators."""
    drawn = world(2).run(synchronised, names)
    torch.manual_seed(100)
    plain = (float(torch.rand(())), float(torch.rand((), generator=torch.Generator().manual_seed(200))))
    assert drawn[0] == plain
    assert (len({first for first, _ in drawn}), len({second for _, second in drawn})) == (main, own)


def test_one_process_has_nothing_to_synchronise() -> None:
    """S122: without other processes nothing moves."""
    before = torch.get_rng_state()
    synchronize_rng_state(transport=Single())
    synchronize_rng_states([RNGType.TORCH], transport=Single())
    assert torch.equal(torch.get_rng_state(), before)


def test_unknown_names_are_all_reported_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="rng_types 'numpy', 'tpu': expected some of cuda, generator, torch, xla"):
        rng_types_of(["torch", "numpy", "tpu"])


def test_a_generator_that_was_not_given_is_asked_for() -> None:
    with pytest.raises(ValueError, match='synchronising "generator" needs the generator: pass generator='):
        synchronize_rng_state("generator", transport=Single())


def test_a_device_that_is_not_in_use_is_refused() -> None:
    with pytest.raises(ValueError, match="rng_types has 'cuda', but this run is on cpu; leave it out"):
        synchronize_rng_state("cuda", transport=Single(), device=Cpu())


def test_a_seed_makes_every_generator_repeat_itself() -> None:
    set_seed(5)
    first = random_numbers()
    set_seed(5)
    assert random_numbers() == first
    set_seed(6)
    assert set(random_numbers()).isdisjoint(first)


def test_a_device_specific_seed_differs_from_rank_to_rank() -> None:
    def drawn(rank: int, *, device_specific: bool) -> list[float]:
        set_seed(5, device_specific, rank=rank)
        return random_numbers()

    assert drawn(0, device_specific=True) == drawn(1, device_specific=False)
    assert set(drawn(0, device_specific=True)).isdisjoint(drawn(1, device_specific=True))


def test_deterministic_asks_torch_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(torch, "use_deterministic_algorithms", asked.append)
    set_seed(1)
    set_seed(1, deterministic=True)
    assert asked == [True]


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
    world: MakeWorld, workers: int, dispatch: bool | None
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
def test_synchronised_generators_are_so_in_loader_workers(world: MakeWorld, workers: int) -> None:
    """S125, S126: rng_types=["torch"] makes augmentation the same on all ranks, in workers too."""
    zero, one = world(2).run(augmented, workers)
    assert zero == one
