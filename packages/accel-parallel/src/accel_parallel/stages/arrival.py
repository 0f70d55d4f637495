"""Take models whose layers are divided when they come, as Transformers divides them while it loads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, final

import torch
import torch.distributed as dist
from accel_amp import local_part
from accel_comm import AccelError
from accel_state import Run
from accel_state.mesh import Axis
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard

from accel_parallel.sharded.undo import put_in_place, undo_sharding
from accel_parallel.stages.tensor_plan import Plan

#: the axes of Transformers' meshes that divide layers, experts, and parts of either
LAYERS, EXPERTS, PARTS = "tp", "ep", ("fsdp", "efsdp")
#: the axes of a run over which whole experts may be spread: their ranks share samples, or each has its own
_SPREADS = ((Axis.TENSOR,), (Axis.SHARD,), (Axis.SHARD, Axis.TENSOR))


class ArrivalError(AccelError, ValueError):
    """An error of a model that arrives divided in a way that the run cannot take. The message lists every reason."""


def arrives_divided(model: nn.Module) -> bool:
    """Return whether another library has divided parameters of a model over processes, which no run has prepared.

    A model that its user has sharded does not: what was chosen for it would be lost.
    """
    names = _names(_meshes(model))
    if any(isinstance(module, FSDPModule) for module in model.modules()):
        return _sharded_while_loading(model) and not names.isdisjoint((*PARTS, EXPERTS))
    return bool(_meshes(model)) and str(Axis.SHARD) not in names


def sizes_of(model: nn.Module) -> dict[str, int]:
    """Return the sizes of a run for a model that arrives divided, by the names of `ParallelismConfig`.

    Raises:
        ArrivalError: The model is whole.
    """
    meshes = _meshes(model)
    if not meshes:
        raise ArrivalError(f"{type(model).__name__} is whole on each process: say which sizes it is to be divided by")
    sizes: dict[str, int] = {}
    for mesh in meshes:
        sizes |= dict(zip(mesh.mesh_dim_names or (*[""] * (mesh.ndim - 1), LAYERS), mesh.shape, strict=True))
    layers, shard = sizes.get(LAYERS, 1), sizes.get(PARTS[0], 1)
    return {"dp_replicate_size": dist.get_world_size() // layers // shard, "dp_shard_size": shard, "tp_size": layers}


def refuse_divided(model: nn.Module, strategy: str, run: Run) -> None:
    """Raise if a model comes divided, for a strategy that cannot take such models.

    Args:
        model: The model.
        strategy: Name of the strategy.
        run: The current run.

    Raises:
        ArrivalError: It is divided, or its user has sharded it.
    """
    if arrives_divided(model):
        sizes = ", ".join(f"{name}={size}" for name, size in sizes_of(model).items() if size > 1)
        raise ArrivalError(
            f"prepare on rank {run.topology.rank}: {type(model).__name__} arrives divided over processes ({sizes}),"
            f" and the strategy {strategy!r} takes whole models only; tell the run of it by"
            f" Accelerator(parallelism_config=ParallelismConfig({sizes})), which leaves the strategy to accel"
        )
    sharded = any(isinstance(module, FSDPModule) for module in model.modules())
    if sharded and any(mesh.size() > 1 and str(Axis.SHARD) not in _names([mesh]) for mesh in _meshes(model)):
        raise ArrivalError(
            f"prepare on rank {run.topology.rank}: {type(model).__name__} is sharded already (fully_shard), and the"
            f" strategy {strategy!r} takes whole models only; leave fully_shard to prepare, or take"
            " Accelerator(strategy='fsdp2')"
        )


@final
class Arrival:
    """The division of a model that arrives divided, put on the mesh of the run.

    Parameters of layers become tensors on the axis `tp` of the run, whose ranks are those that divide them already.
    Whole experts may also be spread over ranks with samples of their own: they have gradients for the samples of all
    of these, which nothing else adds up.

    Args:
        model: The model, which is changed.
        run: The current run, with a mesh.
        masters: Dtype that trained parameters in half precision get; None leaves them.

    Raises:
        ArrivalError: The division contradicts the mesh of the run. The message lists why.
    """

    def __init__(self, model: nn.Module, run: Run, masters: torch.dtype | None) -> None:
        whole: Any = run.device_mesh
        self._run, self._mesh = run, whole
        #: experts that are spread over ranks with samples of their own
        self.spread: list[nn.Parameter] = []
        #: parts of layers, which ranks of other data hold too
        self.layers: list[nn.Parameter] = []
        problems: dict[str, list[str]] = {}
        new_of: dict[torch.Tensor, nn.Parameter] = {}
        for path, parameter in model.named_parameters():
            if isinstance(parameter, DTensor):
                axes = self._axes(parameter.device_mesh)
                if isinstance(axes, str):
                    problems.setdefault(axes, []).append(path)
                else:
                    new_of[parameter] = self._placed(parameter, axes, masters)
        if problems:
            lines = [
                f"{paths[0]}{f' and {len(paths) - 1} others' if len(paths) > 1 else ''}: {why}"
                for why, paths in problems.items()
            ]
            raise ArrivalError(
                f"prepare on rank {run.topology.rank}: {type(model).__name__} arrives divided, and not as this run is"
                " arranged:\n  " + "\n  ".join(lines)
            )
        if run.mesh.tensor > 1 and not self.layers:
            raise ArrivalError(
                f"prepare on rank {run.topology.rank}: {type(model).__name__} arrives with whole layers, and the run is"
                f" to divide them over tp_size={run.mesh.tensor}; load it with this tp_size, or leave it out"
            )
        put_in_place(model, new_of)

    def _axes(self, mesh: DeviceMesh) -> tuple[Axis, ...] | str:
        """Return the axes of the run whose ranks are those of a mesh, or why there are none."""
        names, sizes, ranks = mesh.mesh_dim_names, self._run.mesh.sizes, mesh.mesh.flatten().tolist()
        if mesh.ndim > 1 or names is None or names[0] not in (LAYERS, EXPERTS):
            return (
                f"its mesh has the axes {names}: only one axis that is called {LAYERS!r} is taken, as in"
                f" init_device_mesh({mesh.device_type!r}, (..., {mesh.size(-1)}), mesh_dim_names=(..., {LAYERS!r}))"
            )
        if mesh == self._mesh[str(Axis.TENSOR)]:
            return (Axis.TENSOR,)
        for axes in _SPREADS if names[0] == EXPERTS else ():
            held = [sizes[axis] for axis in axes if sizes[axis] > 1]
            if held and self._mesh[tuple(map(str, axes))].mesh.flatten().tolist() == ranks:
                return axes
        asked = {LAYERS: "tp_size", EXPERTS: "ep_size"}[names[0]]
        have = ", ".join(f"{axis} {size}" for axis, size in sizes.items())
        return (
            f"{asked}={len(ranks)} divides it over the ranks {', '.join(map(str, ranks))}, and the mesh of the run is"
            f" {have}; "
            + (
                f"ask for ParallelismConfig(tp_size={len(ranks)}), or load the model with tp_size={sizes[Axis.TENSOR]}"
                if names[0] == LAYERS
                else "load it with ep_size equal to tp_size, or to all ranks of a copy of the model"
            )
        )

    def _placed(self, parameter: DTensor, axes: tuple[Axis, ...], masters: torch.dtype | None) -> nn.Parameter:
        part = local_part(parameter.detach())
        if masters is not None and parameter.requires_grad and part.dtype.itemsize < masters.itemsize:
            part = part.to(masters)
        spread = axes != (Axis.TENSOR,)
        placed = nn.Parameter(
            DTensor.from_local(
                part.to(self._run.placed_on).contiguous(),
                self._mesh[tuple(map(str, axes))],
                [Shard(0)] * len(axes) if spread else parameter.placements,
                run_check=False,
                shape=parameter.shape,
                stride=parameter.stride(),
            ),
            requires_grad=parameter.requires_grad,
        )
        (self.spread if spread else self.layers).append(placed)
        return placed


def take(model: nn.Module, run: Run, masters: torch.dtype | None, plan: Plan | None) -> Arrival:
    """Return the division of a model that arrives divided, with the parts of layers whole for each rank.

    Args:
        model: The model, which is changed.
        run: The current run, with a mesh.
        masters: Dtype that trained parameters in half precision get; None leaves them.
        plan: Plan of the script for layers, which contradicts the model.

    Raises:
        ArrivalError: The run cannot take the model. The message says why, and what to do.

    Collective:
        Every rank must call.
    """
    if plan is not None:
        raise ArrivalError(
            f"tp_plan is given, and {type(model).__name__} arrives with its layers divided; leave out tp_plan, or"
            " load the model whole"
        )
    if copied := _of_others(model):
        raise ArrivalError(
            f"{copied[0]} of {type(model).__name__} computes with a layer of another model, as in a deep copy of a"
            " model that arrives divided: load it a second time, by from_pretrained, in place of the copy"
        )
    if any({"base_layer", "lora_A", "lora_B"} <= set(dict(one.named_children())) for one in model.modules()):
        raise ArrivalError(
            f"{type(model).__name__} arrives divided, and has adapters (LoRA), which are not: load the model whole,"
            " and let prepare divide it with its adapters, by ParallelismConfig(tp_size=...)"
        )
    if model._compiled_call_impl is not None:
        raise ArrivalError(
            f"torch.compile of the whole model, and {type(model).__name__} arrives divided: compile block by block,"
            " by TorchDynamoPlugin(use_regional_compilation=True)"
        )
    undo_sharding(model)
    return Arrival(model, run, masters)


def average_over_samples(parameters: Iterable[nn.Parameter], ranks: int) -> None:
    """Let gradients that are sums over the losses of ranks become their means, as those of all else do."""
    mean: Callable[[torch.Tensor], torch.Tensor] = lambda gradient: gradient / ranks  # noqa: E731
    for parameter in parameters:
        if parameter.requires_grad:
            parameter.register_hook(mean)  # type: ignore[no-untyped-call] # of torch


def _sharded_while_loading(model: nn.Module) -> bool:
    """Return whether Transformers has sharded a model, which notes in its config over how many ranks."""
    configs = [getattr(module, "config", None) for module in model.modules()]
    return any(getattr(getattr(config, "distributed_config", None), "dp_size", 1) > 1 for config in configs)


def _of_others(model: nn.Module) -> list[str]:
    """Return the paths of modules whose forward holds a module that is not in the model."""
    own = set(model.modules())
    return [
        path
        for path, module in model.named_modules()
        for cell in getattr(vars(module).get("forward"), "__closure__", None) or ()
        if isinstance(cell.cell_contents, nn.Module) and cell.cell_contents not in own
    ]


def _names(meshes: Iterable[DeviceMesh]) -> set[str]:
    return {name for mesh in meshes for name in mesh.mesh_dim_names or ()}


def _meshes(model: nn.Module) -> list[DeviceMesh]:
    found = [parameter.device_mesh for parameter in model.parameters() if isinstance(parameter, DTensor)]
    return list(dict.fromkeys(found))
