from typing import Any

import pytest
import torch
from accel_comm.transports.single import Single
from accel_comm.transports.torch_dist import TorchDist
from accel_ops import broadcast, broadcast_object_list
from accel_testing import MakePool, assert_same_numbers


def sent(source: int) -> Any:
    transport = TorchDist()
    rank = transport.rank
    data = {
        "x": torch.full((2,), float(rank)),
        "crossed": (torch.arange(6).view(2, 3).t() + rank,),
        "flag": torch.tensor(rank == 1),
        "half": torch.full((1,), rank, dtype=torch.bfloat16),
        "wave": torch.full((1,), rank * 1j),
        "none": torch.zeros(0),
    }
    return broadcast(data, transport, source=source)


@pytest.mark.parametrize("source", [0, 1, 2])
def test_every_rank_gets_the_tensors_of_one(world: MakePool, source: int) -> None:
    """Reference 2.7."""
    expected = {
        "x": torch.full((2,), float(source)),
        "crossed": (torch.arange(6).view(2, 3).t() + source,),
        "flag": torch.tensor(source == 1),
        "half": torch.full((1,), source, dtype=torch.bfloat16),
        "wave": torch.full((1,), source * 1j),
        "none": torch.zeros(0),
    }
    for found in world(3).run(sent, source):
        assert_same_numbers(found, expected, atol=0)


def objects_sent() -> tuple[list[Any], bool]:
    transport = TorchDist()
    objects = ["of", {"rank": transport.rank}, None]
    returned = broadcast_object_list(objects, transport, source=1)
    return objects, returned is objects


def test_a_list_is_overwritten_in_place_by_that_of_the_source(world: MakePool) -> None:
    assert world(2).run(objects_sent) == [(["of", {"rank": 1}, None], True)] * 2


@pytest.mark.parametrize("source", [-1, 1])
def test_a_rank_that_does_not_exist_is_refused(source: int) -> None:
    with pytest.raises(ValueError, match=f"rank {source} of 1: expected 0 to 0"):
        broadcast(torch.ones(1), Single(), source=source)
    with pytest.raises(ValueError, match=f"rank {source} of 1: expected 0 to 0"):
        broadcast_object_list([], Single(), source=source)


def test_alone_everything_stays() -> None:
    x, objects = torch.ones(1), ["a"]
    assert broadcast([x], Single())[0] is x
    assert broadcast_object_list(objects, Single()) is objects
    assert objects == ["a"]
