"""What arrives divided is found, put on the mesh of the run as it is, or refused in words. Nothing is exchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from accel_amp import local_part
from accel_parallel import ParallelismConfig
from accel_parallel.sharded.parameter_groups import parameter_groups
from accel_parallel.sharded.undo import undo_sharding
from accel_parallel.stages.arrival import Arrival, ArrivalError, arrives_divided, refuse_divided, take
from accel_state.mesh import MeshSpec
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore


@pytest.fixture(params=[4])
def ranks(request: pytest.FixtureRequest) -> Iterator[int]:
    """This process is the second of so many, which exchange nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=request.param)
    try:
        yield request.param
    finally:
        dist.destroy_process_group()


def run_of(spec: MeshSpec) -> Any:
    """The facts that are asked of a run."""
    place = SimpleNamespace(rank=1)
    return SimpleNamespace(mesh=spec, device_mesh=spec.build("cpu"), topology=place, placed_on=torch.device("cpu"))


def model_on(shape: tuple[int, ...], names: tuple[str, ...] | None, axis: str | None = None) -> nn.Sequential:
    """A tied layer that is divided over one axis of a mesh, between whole ones that are frozen."""
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(4)])
    model[0].requires_grad_(False)
    whole = torch.arange(64.0).view(8, 8)
    divided = distribute_tensor(whole, mesh if axis is None else mesh[axis], [Shard(0)], src_data_rank=None)
    model[1].weight = model[2].weight = nn.Parameter(divided)
    return model


def placed(model: nn.Sequential) -> DTensor:
    weight = model[1].weight
    assert isinstance(weight, DTensor)
    assert model[2].weight is weight
    return weight


@pytest.mark.parametrize(
    ("shape", "names", "spec", "axes"),
    [
        ((4,), ("tp",), MeshSpec(tensor=4), ("tp",)),
        ((2, 2), ("any", "tp"), MeshSpec(shard=2, tensor=2), ("tp",)),
        ((2, 2), ("any", "tp"), MeshSpec(replicate=2, tensor=2), ("tp",)),
        ((2, 2), ("efsdp", "ep"), MeshSpec(shard=2, tensor=2), ("tp",)),
        ((1, 4), ("efsdp", "ep"), MeshSpec(shard=4), ("dp_shard",)),
        ((2, 2), ("dp_replicate", "ep"), MeshSpec(replicate=2, shard=2), ("dp_shard",)),
        ((1, 4), ("efsdp", "ep"), MeshSpec(shard=2, tensor=2), ("dp_shard", "tp")),
    ],
)
@pytest.mark.usefixtures("ranks")
def test_what_is_divided_goes_on_the_axes_of_the_run_that_have_its_ranks(
    shape: tuple[int, ...], names: tuple[str, ...], spec: MeshSpec, axes: tuple[str, ...]
) -> None:
    model, run = model_on(shape, names, names[-1]), run_of(spec)
    if len(axes) == 2:  # layers are divided beside experts
        model[3].weight = model_on((2, 2), ("any", "tp"), "tp")[1].weight
    assert arrives_divided(model)
    part = local_part(placed(model).detach()).clone()
    arrival = Arrival(model, run, None)
    weight = placed(model)
    assert weight.device_mesh == run.device_mesh[axes]
    assert weight.shape == (8, 8)
    assert torch.equal(local_part(weight.detach()), part)
    assert list(map(id, arrival.spread)) == ([id(weight)] if "dp_shard" in axes else [])
    assert list(map(id, arrival.layers)) == (
        [] if axes == ("dp_shard",) else [id(model[3 if len(axes) == 2 else 1].weight)]
    )


@pytest.mark.parametrize(
    ("shape", "names", "spec", "words"),
    [
        ((4,), ("tp",), MeshSpec(shard=2, tensor=2), r"1\.weight: tp_size=4 .* ranks 0, 1, 2, 3, .* dp_shard 2, tp 2;"),
        ((2, 2), ("any", "tp"), MeshSpec(shard=4), r"tp_size=2 divides it .* ask for ParallelismConfig\(tp_size=2\)"),
        ((2, 2), ("tp", "any"), MeshSpec(shard=2, tensor=2), r"tp_size=2 divides it over the ranks 1, 3, and"),
        ((2, 2), ("efsdp", "ep"), MeshSpec(shard=4), r"ep_size=2 .* ep_size equal to tp_size, or to all ranks"),
        ((4,), None, MeshSpec(tensor=4), r"its mesh has the axes None: only one axis that is called 'tp' is taken"),
        ((4,), ("rows",), MeshSpec(tensor=4), r"its mesh has the axes \('rows',\): only one axis"),
    ],
)
@pytest.mark.usefixtures("ranks")
def test_a_mesh_that_contradicts_that_of_the_run_is_refused(
    shape: tuple[int, ...], names: tuple[str, ...] | None, spec: MeshSpec, words: str
) -> None:
    axis = None if names is None else next((name for name in names if name in ("tp", "ep")), names[0])
    with pytest.raises(ArrivalError, match=words):
        Arrival(model_on(shape, names, axis), run_of(spec), None)


@pytest.mark.usefixtures("ranks")
def test_layers_that_were_to_be_divided_and_are_not_are_refused() -> None:
    """Their ranks would send the same tokens to experts twice."""
    with pytest.raises(ArrivalError, match="arrives with whole layers, and the run is to divide them over tp_size=2;"):
        Arrival(model_on((1, 4), ("efsdp", "ep"), "ep"), run_of(MeshSpec(shard=2, tensor=2)), None)


@pytest.mark.usefixtures("ranks")
def test_a_deep_copy_computes_with_the_original_and_is_refused() -> None:
    """A forward that Transformers puts over that of a layer holds the layer, and a copy has the same forward."""
    model, run = model_on((4,), ("tp",)), run_of(MeshSpec(tensor=4))
    layer = model[1]
    layer.forward = lambda inputs: type(layer).forward(layer, inputs)
    copied = deepcopy(model)
    with pytest.raises(ArrivalError, match=r"^1 of Sequential computes with .* another model, .* a second time"):
        take(copied, run, None, None)
    take(model, run, None, None)


@pytest.mark.usefixtures("ranks")
def test_trained_parts_in_half_precision_get_masters() -> None:
    model = model_on((4,), ("tp",)).to(torch.bfloat16)
    Arrival(model, run_of(MeshSpec(tensor=4)), torch.float32)
    assert placed(model).dtype == torch.float32


@pytest.mark.usefixtures("ranks")
def test_a_model_says_by_which_sizes_it_is_divided() -> None:
    by_layers = model_on((2, 2), ("any", "tp"), "tp")
    assert ParallelismConfig.of(by_layers) == ParallelismConfig(dp_replicate_size=2, tp_size=2)
    assert ParallelismConfig.of(model_on((4,), None)) == ParallelismConfig(tp_size=4)
    with pytest.raises(ArrivalError, match="Linear is whole on each process"):
        ParallelismConfig.of(nn.Linear(2, 2))
    refuse_divided(nn.Linear(2, 2), "ddp", run_of(MeshSpec(tensor=4)))
    with pytest.raises(ArrivalError, match=r"'ddp' takes whole models only; .*\(dp_replicate_size=2, tp_size=2\)"):
        refuse_divided(by_layers, "ddp", run_of(MeshSpec(tensor=4)))


@pytest.mark.parametrize("names", [("fsdp",), ("fsdp", "tp")])
@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.usefixtures("ranks")
def test_what_a_user_has_sharded_is_left_as_it_is(names: tuple[str, ...], is_whole: bool) -> None:
    """A common name of an axis says nothing about who has made it."""
    mesh = init_device_mesh("cpu", (4,) if len(names) == 1 else (2, 2), mesh_dim_names=names)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)) if len(names) == 1 else model_on((2, 2), names, "tp")
    fully_shard(model if is_whole else model[0], mesh=mesh["fsdp"])
    assert not arrives_divided(model)
    with pytest.raises(ArrivalError, match=r"is sharded already \(fully_shard\), and the strategy 'ddp' takes whole"):
        refuse_divided(model, "ddp", run_of(MeshSpec(tensor=4)))


@pytest.mark.parametrize("ranks", [2], indirect=True)
@pytest.mark.parametrize("is_oldest", [False, True])
@pytest.mark.usefixtures("ranks")
def test_sharding_is_undone_as_if_it_had_never_been(is_oldest: bool) -> None:
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("fsdp", "tp"))
    model = model_on((1, 2), ("any", "tp"), "tp")
    inputs, head = torch.ones(2, 8), cast("Callable[[torch.Tensor], torch.Tensor]", model[3])
    expected, numbers = head(inputs), local_part(placed(model).detach()).clone()
    names = vars(model).keys()
    fully_shard([model[0], model[3]], mesh=mesh["fsdp"])
    fully_shard(model, mesh=mesh["fsdp"])
    note: Any = SimpleNamespace(distributed_config=SimpleNamespace(dp_size=2))
    model.config = note
    assert arrives_divided(model)
    del model.config
    for held in [held for group in parameter_groups(model) for held in group.fsdp_params] if is_oldest else ():
        divided = vars(held).pop("_unsharded_dtensor_spec", None)
        if divided is not None:
            held._tp_spec = divided  # as torch 2.9 calls it
    undo_sharding(model)
    assert type(model) is nn.Sequential
    assert not any(isinstance(module, FSDPModule) for module in model.modules())
    assert vars(model).keys() == names
    assert placed(model).device_mesh == mesh["tp"]
    assert torch.equal(local_part(placed(model).detach()), numbers)
    assert not model[0].weight.requires_grad
    assert not isinstance(model[3].weight, DTensor)
    assert torch.equal(head(inputs), expected)
    fully_shard(model, mesh=mesh["fsdp"])  # again
