"""Tensors of which each rank holds a part are whole in every exchange."""

from typing import Any

import pytest
import torch
from accel_comm import CollectiveMismatch
from accel_comm.transports.single import Single
from accel_comm.transports.torch_dist import TorchDist
from accel_ops import ShapeMismatch, broadcast, gather, gather_for_metrics, pad_across_processes, reduce
from accel_testing import MakePool, RankFailure
from torch import Tensor

WHOLE = torch.arange(10.0).view(5, 2) + 1


def parts(shards: bool = True) -> Any:
    """A tensor of which two ranks hold three rows and two, and one that all hold whole."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    return distribute_tensor(WHOLE.clone(), mesh, [Shard(0) if shards else Replicate()])


def exchanged() -> dict[str, Any]:
    transport, part = TorchDist(), parts()
    mine = torch.full((transport.rank + 1,), 7.0)
    return {
        "sum": reduce({"part": part, "mine": torch.ones(2) * transport.rank}, transport, how="sum"),
        "mean": reduce(part, transport),
        "scaled": reduce(parts(shards=False), transport, how="sum", scale=0.5),
        "norm": reduce(part.norm(), transport),  # partial sums of squares on each rank
        "gather": gather((part, mine), transport),
        "metrics": gather_for_metrics(part, transport, None),
        "objects": gather([{"name": "x"}], transport),
        "broadcast": broadcast(part * 2, transport, source=1),
        "pad": pad_across_processes([part, mine], transport),
    }


def test_every_exchange_serves_the_whole(world: MakePool) -> None:
    """S33, T10: `reduce(parameter.grad.norm(), "mean")` is how people log norms."""
    for rank, found in enumerate(world(2).run(exchanged)):
        wanted = {
            "sum": {"part": WHOLE * 2, "mine": torch.ones(2)},
            "mean": WHOLE,
            "scaled": WHOLE,
            "norm": WHOLE.norm(),
            "gather": (torch.cat([WHOLE, WHOLE]), torch.full((3,), 7.0)),
            "metrics": torch.cat([WHOLE, WHOLE]),
            "broadcast": WHOLE * 2,
            "pad": [WHOLE, torch.tensor([7.0, 7.0 * rank])],
        }
        assert found.pop("objects") == [{"name": "x"}] * 2
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=0)
        assert all(type(tensor) is Tensor for tensor in (found["mean"], found["norm"], found["broadcast"]))


def half_sharded(call: str) -> None:
    transport = TorchDist()
    given = parts()
    data = given if transport.rank == 0 else WHOLE
    {"reduce": reduce, "gather": gather}[call](data, transport)


@pytest.mark.parametrize("call", ["reduce", "gather"])
def test_ranks_with_a_part_and_with_the_whole_are_told(world: MakePool, call: str) -> None:
    with pytest.raises(RankFailure) as failure:
        world(2).run(half_sharded, call)
    for error in failure.value.errors.values():
        assert isinstance(error, CollectiveMismatch | ShapeMismatch)
        assert "of sharded tensors" in str(error)


def alone() -> list[Any]:
    part, transport = parts(), Single()
    return [call(part, transport) for call in (reduce, gather, broadcast, pad_across_processes)]


def test_one_process_gets_the_whole_too(world: MakePool) -> None:
    for found in world(1).run(alone)[0]:
        assert type(found) is Tensor
        assert found.equal(WHOLE)
