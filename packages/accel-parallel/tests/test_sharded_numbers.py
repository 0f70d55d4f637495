"""Numbers of sharded tensors are refused on the meshes of prepared models, and left to torch on others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from accel_parallel.sharded.numbers import guard_numbers
from accel_testing import MakePool
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor


def words(act: Callable[[], Any]) -> str:
    """What an act gives, or how it is refused."""
    try:
        return repr(act())
    except RuntimeError as error:
        return str(error)[:40]


def acts(mesh_name: str) -> list[str]:
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=(mesh_name,))
    tensor: Any = distribute_tensor(torch.arange(1.0, 5.0), mesh, [Shard(0)])
    whole: Any = distribute_tensor(torch.arange(1.0, 5.0), mesh, [Replicate()])

    def put() -> list[float]:
        tensor[1] = 7.0
        return tensor.full_tensor().tolist()  # type: ignore[no-any-return]

    steps: list[Callable[[], Any]] = [
        lambda: tensor.sum().item(),
        lambda: float(tensor.norm()),
        lambda: whole.sum().item(),
        lambda: type(tensor[:2].zero_()).__name__,
        put,
    ]
    return [words(step) for step in steps]


def guarded_and_not() -> list[list[str]]:
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("of_a_model",))
    before = acts("of_a_script")
    guard_numbers([distribute_tensor(torch.ones(4), mesh, [Shard(0)])])
    return [before, acts("of_a_script"), acts("of_a_model")]


def test_only_tensors_of_prepared_models_are_guarded(world: MakePool) -> None:
    for rank, (before, after, guarded) in enumerate(world(2).run(guarded_and_not)):
        assert after == before
        assert before[0] == ["3.0", "7.0"][rank], "torch gives the number of a part"
        assert guarded[0].startswith("a number of a sharded tensor")
        assert guarded[1].startswith("a number of a sharded tensor")
        assert guarded[2] == "10.0"
        assert guarded[3].startswith("zero_ of rows of a sharded tensor")
        assert guarded[4] == "[1.0, 7.0, 3.0, 4.0]"
