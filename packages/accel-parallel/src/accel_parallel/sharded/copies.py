"""Copy sharded models: their weights, in parts, in modules of their own."""

from __future__ import annotations

from collections import OrderedDict
from copy import deepcopy
from typing import Any, NoReturn, cast

from torch import nn
from torch.distributed.fsdp import FSDPModule

#: hooks of the original gather its weights, and a copy has none of them
_HOOKS = ("_forward", "_backward", "_state_dict", "_load_state_dict")
#: attributes that torch's fully_shard sets
OF_SHARDING = ("__composable_api_state", "_is_fsdp_managed_module", "_fsdp_use_orig_params")


def allow_copies(model: nn.Module) -> None:
    """Let `copy.deepcopy` of a sharded model, and so torch's AveragedModel, give a copy of its weights."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            cast("Any", type(module)).__deepcopy__ = _copy


def _copy(sharded: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """Return a module of the class that the model had before, each parameter a copy of this rank's part."""
    plain = next(kind for kind in type(sharded).__mro__ if not issubclass(kind, FSDPModule))
    twin = cast("nn.Module", plain.__new__(plain))
    memo[id(sharded)] = twin
    gradients = [parameter.grad for parameter in sharded.parameters() if parameter.grad is not None]
    memo.update((id(gradient), gradient.clone()) for gradient in gradients)  # which torch cannot copy deeply
    for name, value in vars(sharded).items():
        if name.startswith(_HOOKS) and "hooks" in name:
            vars(twin)[name] = OrderedDict()
        elif name.startswith(OF_SHARDING):
            continue
        # what prepare has put over a method belongs to the original
        elif not callable(value) or not hasattr(plain, name):
            vars(twin)[name] = deepcopy(value, memo)
    twin.register_forward_pre_hook(_refuse)
    return twin


def _refuse(module: nn.Module, _: Any) -> NoReturn:
    raise RuntimeError(
        f"this {type(module).__name__} is a copy of a sharded model, and has its weights in parts: it computes nothing."
        " Load them into the prepared model, model.load_state_dict(copy.state_dict()), or save them by"
        " accelerator.save_model(copy, folder)"
    )
