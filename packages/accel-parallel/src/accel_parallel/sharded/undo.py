"""Remove the sharding that another library has made, so that a model can be sharded as the run is arranged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import nn
from torch.distributed._composable_state import _module_state_mapping
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard

from accel_parallel.sharded.copies import OF_SHARDING
from accel_parallel.sharded.parameter_groups import parameter_groups


def undo_sharding(model: nn.Module) -> None:
    """Gather what torch's `fully_shard` has divided, and give modules their classes back. Divided layers stay so.

    Args:
        model: The model, which is changed. It needs memory for all that one rank computes with.

    Collective:
        Every rank must call.

    Source:
        `FSDPState.init` and `FSDPParamGroup._register_state_dict_hooks` of torch 2.9 to 2.13.
    """
    sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
    new_of: dict[torch.Tensor, nn.Parameter] = {}
    for module in sharded:
        module.reshard()
    for group in parameter_groups(model):
        of_modules = group._module_to_pre_save_state_dict_hook_handle, group._module_to_pre_load_state_dict_hook_handle
        for handle in [handle for handles in of_modules for handle in handles.values()]:
            handle.remove()
        for held in group.fsdp_params:
            # a library that loads weights has put them into the module, and torch looks for them when it computes
            now = held._module_info.module._parameters[held._module_info.param_name]
            new_of[now] = _gathered(now, held, group.mesh_info)
    for module in sharded:
        state: Any = module._get_fsdp_state()
        state._pre_forward_hook_handle.remove()
        state._post_forward_hook_handle.remove()
    for module in sharded:
        _module_state_mapping.pop(module)
        plain = next(kind for kind in type(module).__mro__ if not issubclass(kind, FSDPModule))
        cast("Any", module).__class__ = plain
    put_in_place(model, new_of)
    for part in model.modules():
        for name in [name for name in vars(part) if name.startswith(OF_SHARDING)]:
            delattr(part, name)


def put_in_place(model: nn.Module, new_of: Mapping[torch.Tensor, nn.Parameter]) -> None:
    """Replace parameters of a model by others, and those that are tied by the same.

    Args:
        model: The model.
        new_of: For each old parameter the new one.
    """
    for module in model.modules():
        for name, held in module._parameters.items():
            if held is not None and held in new_of:
                module._parameters[name] = new_of[held]


@torch.no_grad()
def _gathered(parameter: Any, held: Any, mesh_info: Any) -> nn.Parameter:
    """Return a parameter as it was before `fully_shard`."""
    whole = parameter._local_tensor
    if mesh_info.shard_mesh_size > 1:
        mesh = mesh_info.mesh
        ranks = mesh if mesh.ndim == 1 else mesh[mesh.mesh_dim_names[mesh_info.shard_mesh_dim]]
        shape, stride = held._orig_size, held._contiguous_orig_stride
        whole = _divided(whole, ranks, [Shard(held.fsdp_placement.dim)], shape, stride).full_tensor()
    spec = _spec_of(held)
    if spec is not None:
        whole = _divided(whole, spec.mesh, spec.placements, spec.shape, spec.stride)
    return nn.Parameter(whole, requires_grad=parameter.requires_grad)


def _spec_of(held: Any) -> Any:
    """Return how a parameter was divided before `fully_shard`, or None if it was whole."""
    # torch 2.9 calls it _tp_spec, and sets it for divided parameters only
    return getattr(held, "_unsharded_dtensor_spec", None) or getattr(held, "_tp_spec", None)


def _divided(part: torch.Tensor, mesh: Any, placements: Any, shape: Any, stride: Any) -> DTensor:
    return DTensor.from_local(part, mesh, placements, run_check=False, shape=shape, stride=stride)
