"""What libraries for Accelerate call around sharded models and float8, where it means something beside `prepare`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import torch
from accel_parallel import tie_again
from accel_state.environ import change
from torch import nn

from accel_names.models import compile_regions

#: what transformers asks, before it reads weights on rank 0 only
_EFFICIENT = "FSDP_CPU_RAM_EFFICIENT_LOADING"


def enable_fsdp_ram_efficient_loading() -> None:
    """Tells libraries that read weights to read them on rank 0 only."""
    change({_EFFICIENT: "True", "ACCELERATE_USE_FSDP": "True"})


def disable_fsdp_ram_efficient_loading() -> None:
    """Tells libraries that read weights to read them on every rank."""
    change({_EFFICIENT: "False"})


def ensure_weights_retied(
    param_init_fn: Callable[[nn.Module], None], model: nn.Module, device: Any
) -> Callable[[nn.Module], None]:
    """A function that initialises a module as `param_init_fn` does, and ties again what is tied in the model now."""
    names = list(model.named_parameters(remove_duplicate=False))

    def initialise(module: nn.Module) -> None:
        param_init_fn(module)
        tie_again(model, names)

    return initialise


def get_fsdp2_grad_scaler(**kwargs: Any) -> torch.amp.GradScaler:
    """torch's scaler of losses, which takes parameters that are divided over ranks."""
    return torch.amp.GradScaler(**kwargs)


def compile_regions_fsdp2(module: nn.Module, **compile_kwargs: Any) -> nn.Module:
    """The module itself, of which each block of a list of like blocks is compiled in place."""
    return compile_regions(module, **compile_kwargs)


def get_model_tp_size(model: nn.Module) -> int | None:
    """Over how many ranks the layers of a transformers model are divided; None if it does not say."""
    size: int | None = getattr(model, "tp_size", None)
    return size


def has_ao_layers(model: nn.Module) -> bool:
    """Whether torchao has replaced a layer of the model by a layer that computes in float8."""
    return any(type(module).__module__.startswith("torchao.") for module in model.modules())


def filter_first_and_last_linear_layers(module: nn.Module, fqn: str) -> bool:
    """Whether a layer of this name may compute in float8: not the first or last linear one, in multiples of 16."""
    if isinstance(module, nn.Linear) and (module.in_features % 16 or module.out_features % 16):
        return False
    linear = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    return fqn not in (linear[:1] + linear[-1:])


def has_offloaded_params(module: nn.Module) -> bool:
    """Whether a hook of the module puts its weights on their device for the while of a forward."""
    return bool(getattr(getattr(module, "_hf_hook", None), "offload", False))


def get_parameters_from_modules(
    modules: Iterable[nn.Module] | str | None, model: nn.Module, device: torch.device | str
) -> set[nn.Parameter] | None:
    """The parameters of these modules, which are moved to the device; None if there are none.

    A text is a pattern of the whole names of modules.
    """
    if not modules:
        return None
    if isinstance(modules, str):
        pattern = re.compile(modules)
        modules = [module for name, module in model.named_modules() if pattern.fullmatch(name)]
    return {parameter for module in modules for parameter in module.to(device).parameters()}
