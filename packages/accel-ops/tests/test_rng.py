"""Generators are made equal where they must be, and seeds make them repeat themselves."""

import random

import numpy
import pytest
import torch
from accel_comm.transports.single import Single
from accel_comm.transports.torch_dist import TorchDist
from accel_ops.rng import RNGType, rng_types_of, set_seed, synchronize_rng_state, synchronize_rng_states
from accel_state.devices.cpu import Cpu
from accel_testing import MakePool


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
    world: MakePool, names: list[str], main: int, own: int
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
