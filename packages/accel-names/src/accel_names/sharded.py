"""Do what libraries for Accelerate ask for around sharded models and float8, besides `prepare`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from accel_parallel import tie_again
from accel_state.environ import change
from torch import nn

from accel_names.availability import torchao_required

#: what transformers asks, before it reads weights on rank 0 only
_EFFICIENT = "FSDP_CPU_RAM_EFFICIENT_LOADING"


def enable_fsdp_ram_efficient_loading() -> None:
    """Tell libraries that read weights to read them on rank 0 only."""
    change({_EFFICIENT: "True", "ACCELERATE_USE_FSDP": "True"})


def disable_fsdp_ram_efficient_loading() -> None:
    """Tell libraries that read weights to read them on every rank."""
    change({_EFFICIENT: "False"})


def ensure_weights_retied(
    param_init_fn: Callable[[nn.Module], None], model: nn.Module, device: Any
) -> Callable[[nn.Module], None]:
    """Return a function that initialises a module, and ties again what is tied in the model now.

    Args:
        param_init_fn: The function that initialises a module.
        model: The model with the tied weights.
        device: Not used: `param_init_fn` chooses it.
    """
    names = list(model.named_parameters(remove_duplicate=False))

    def initialise(module: nn.Module) -> None:
        param_init_fn(module)
        tie_again(model, names)

    return initialise


def get_model_tp_size(model: nn.Module) -> int | None:
    """Return over how many ranks the layers of a transformers model are divided, or None if it does not say."""
    said = getattr(getattr(model, "config", None), "distributed_config", None)
    later = said if isinstance(said, Mapping) else getattr(said, "__dict__", {})
    size: int | None = getattr(model, "tp_size", None)
    return later.get("tp_size") if size is None else size


def has_ao_layers(model: nn.Module) -> bool:
    """Return whether torchao has replaced a layer of the model by one that computes in float8."""
    return any(type(module).__module__.startswith("torchao.") for module in model.modules())


def has_transformer_engine_layers(model: nn.Module) -> bool:
    """Return whether a layer of the model is one of Transformer Engine."""
    return any(type(module).__module__.startswith("transformer_engine.") for module in model.modules())


@torchao_required
def convert_model_to_fp8_ao(
    model: nn.Module, config: Any = None, module_filter_func: Callable[[nn.Module, str], bool] | None = None
) -> None:
    """Replace linear layers of a model by torchao's, which compute in float8.

    Args:
        model: The model.
        config: torchao's `Float8LinearConfig`.
        module_filter_func: Which layers are replaced; by default all but the first and the last, and those whose sizes
            are no multiples of 16.
    """

    def fits(layer: nn.Module, name: str) -> bool:
        linear = isinstance(layer, nn.Linear) and not (layer.in_features % 16 or layer.out_features % 16)
        return linear and filter_first_and_last_linear_layers(model, name)

    import_module("torchao.float8").convert_to_float8_training(
        model, module_filter_fn=module_filter_func or fits, config=config
    )


def filter_first_and_last_linear_layers(module: nn.Module, fqn: str) -> bool:
    """Return whether a layer may compute in float8.

    The first and the last linear layer may not, nor may one whose sizes are no multiples of 16.

    Args:
        module: The model.
        fqn: The name of the layer in it.
    """
    if isinstance(module, nn.Linear) and (module.in_features % 16 or module.out_features % 16):
        return False
    linear = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    return fqn not in (linear[:1] + linear[-1:])
