"""Find what a script has done to the parameters of a sharded model since it was sharded."""

from __future__ import annotations

import weakref
from typing import Any, cast, final

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from accel_parallel.invariants import refuse_renormalised
from accel_parallel.rebind import refuse_hooks

_SWAPPED = (
    "replaced, and torch looks for the numbers of a sharded parameter elsewhere: they would never be used. Write into"
    " it, as in parameter[...] = numbers, under torch.no_grad()"
)


@final
class ShardedPlaces:
    """A check, before a forward, of what a script has done to the parameters of a sharded model since the last.

    Args:
        model: The sharded model.

    Source:
        `FSDPParam.sharded_param`, `_unsharded_param` and `_module_info` of torch 2.9 to 2.13.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model, named = model, dict(model.named_parameters())
        sharded = {name: held for name, held in named.items() if isinstance(held, DTensor)}
        # where the numbers of each sharded parameter are, and what tells that `parameter.data` was replaced
        self._held = {name: _place_of(parameter) for name, parameter in sharded.items()}
        self._sharded = sharded
        #: of each parameter torch's own object, the parameters of the module that has it, and its name there
        self._places: list[tuple[Any, dict[str, Any], str]] = []
        for module in model.modules():
            group = cast("Any", module)._get_fsdp_state()._fsdp_param_group if isinstance(module, FSDPModule) else None
            for one in group.fsdp_params if group is not None else ():
                info = one._module_info
                modules, names = [info.module, *info.shared_modules], [info.param_name, *info.shared_param_names]
                self._places += [(one, owner._parameters, leaf) for owner, leaf in zip(modules, names, strict=True)]
        shared = {id(one.sharded_param) for one, _, _ in self._places}
        # hooks see the gradients of whole experts that ranks hold for themselves
        self._hooked = [(name, held) for name, held in named.items() if name not in sharded or id(held) in shared]
        self._tables = [one for one in model.modules() if isinstance(one, nn.Embedding | nn.EmbeddingBag)]

    def look(self, *_: Any) -> None:
        """Check all parameters, as a hook that comes before the forward gathers weights.

        Raises:
            ValueError: There are hooks that nobody would call, parameters that nobody would use, or embeddings that
                would renormalise rows.
            RuntimeError: There are values that nobody would see.
        """
        if torch.is_grad_enabled():
            refuse_hooks(self._hooked)
        for one, holder, leaf in self._places:
            there = holder.get(leaf)
            if there is not one.sharded_param and there is not getattr(one, "_unsharded_param", None):
                name = next(path for path, module in self._model.named_modules() if module._parameters is holder)
                raise ValueError(
                    f"{name}.{leaf} of a sharded {type(self._model).__name__} was replaced, tied, parametrized or"
                    " called with others (functional_call): torch would use and train the one that it has sharded, and"
                    " not this one. Do so before prepare, replace the whole layer, or use strategy='ddp'"
                )
            if one._sharded_param_data.untyped_storage()._cdata != _storage_of(one.sharded_param):
                raise RuntimeError(f"the numbers of a sharded {leaf} were {_SWAPPED}")
        for name, held in self._held.items():
            place = _place_of(self._sharded[name])
            if place[0]() is not held[0]():
                self._held[name] = place  # a move of the model has replaced the whole tensor
            elif place[1] != held[1]:
                raise RuntimeError(f"{name}.data was {_SWAPPED}")
        for table in self._tables:
            if table.max_norm is not None:
                refuse_renormalised(self._model, 2)


def _storage_of(parameter: Any) -> int:
    return cast("int", parameter._local_tensor.untyped_storage()._cdata)


def _place_of(parameter: DTensor) -> tuple[weakref.ref[torch.Tensor], int]:
    return weakref.ref(parameter._local_tensor), parameter.untyped_storage()._cdata
