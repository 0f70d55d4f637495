"""Processes that are served the same samples exchange as one rank."""

import pickle
from typing import Any

import pytest
import torch
from accel_comm import Reduction
from accel_comm.transports.single import Single
from accel_comm.transports.torch_dist import TorchDist
from accel_state import RunRequest, acquire, release
from accel_state.data_ranks import DataRanks
from accel_testing import MakePool, assert_same_numbers

HOWS: list[Reduction] = ["sum", "mean", "max", "min"]


def exchanged(copies: int) -> dict[str, Any]:
    world = TorchDist()
    ranks = DataRanks(world, copies)
    # what only the first copies say counts
    number = float(ranks.rank + 1) if world.rank % copies == 0 else 100.0
    agreed = ranks.agree("agree", b"same", str(number).encode(), lambda parts: str(sum(map(float, parts))).encode())
    return {
        "rank": (ranks.rank, ranks.size),
        "all_gather": ranks.all_gather(torch.full((2, 1), number)),
        "all_gather of numbers": ranks.all_gather(torch.tensor(number)),
        "all_gather of nothing": ranks.all_gather(torch.empty(0, 3)),
        **{f"all_reduce {how}": ranks.all_reduce(torch.tensor([ranks.rank + 1.0]), how) for how in HOWS},
        "sum of what first copies have": ranks.all_reduce(torch.tensor([number]), "sum"),
        "broadcast": ranks.broadcast(torch.tensor([number]), 1),
        "broadcast_object": ranks.broadcast_object(number, 1),
        "all_gather_objects": ranks.all_gather_objects(number),
        "agree": sum(map(float, agreed or ())),
        "disagree": ranks.agree("agree", str(world.rank).encode()),
    }


def test_results_are_those_of_as_many_processes_as_ranks(world: MakePool) -> None:
    for rank, found in enumerate(world(4).run(exchanged, 2)):
        wanted = {
            "rank": (rank // 2, 2),
            "all_gather": torch.tensor([[1.0], [1.0], [2.0], [2.0]]),
            "all_gather of numbers": torch.tensor([1.0, 2.0]),
            "all_gather of nothing": torch.empty(0, 3),
            "all_reduce sum": torch.tensor([3.0]),
            "all_reduce mean": torch.tensor([1.5]),
            "all_reduce max": torch.tensor([2.0]),
            "all_reduce min": torch.tensor([1.0]),
            "sum of what first copies have": torch.tensor([3.0]),
            "broadcast": torch.tensor([2.0]),
            "broadcast_object": 2.0,
            "all_gather_objects": [1.0, 2.0],
            "agree": 3.0,
            "disagree": None,
        }
        assert_same_numbers(found, wanted, atol=0)


def alone() -> tuple[list[Any], Any]:
    ranks = DataRanks(TorchDist(), 2)
    x = torch.tensor([float(ranks.world.rank)])
    return [ranks.all_gather(x), ranks.all_reduce(x, "mean")], ranks.broadcast_object(ranks.world.rank, 0)


def test_a_single_rank_keeps_its_tensors_and_hears_its_first_copy(world: MakePool) -> None:
    for rank, (tensors, heard) in enumerate(world(2).run(alone)):
        assert_same_numbers(tensors, [torch.tensor([float(rank)])] * 2, atol=0)
        assert heard == 0


def through_pickle() -> tuple[int, int]:
    ranks = DataRanks(acquire(RunRequest(cpu=True)).transport, 2)
    found: DataRanks = pickle.loads(pickle.dumps(ranks))  # as a loader that is copied sends them
    told = found.broadcast_object(found.world.rank, 0)
    release()
    return found.replicas, told


def test_they_survive_pickling_with_the_transport_of_the_run(world: MakePool) -> None:
    assert world(2).run(through_pickle) == [(2, 0), (2, 0)]


def test_processes_that_do_not_divide_into_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="1 processes cannot be divided into groups of 2"):
        DataRanks(Single(), 2)
