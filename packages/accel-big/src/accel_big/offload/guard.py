"""Let a model with offloaded weights give its state dict, and refuse what would lose them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn, TypeVar

import torch
from accel_checkpoint.weights.materialise import named_tensors
from accel_state.errors import CannotRun
from torch import nn

from accel_big.hooks.model_hook import ModelHook
from accel_big.offload.unit import MARK, offloaded_parameters

M = TypeVar("M", bound=nn.Module)
#: what torch.compile calls in the models that it wraps, at their first forward
_BEFORE_COMPILED = ("_initialize_hook", "_infer_parameters")


class DispatchGuard(ModelHook):
    """A hook that fills the state dict of a model, and refuses what would change or trace meta tensors.

    Args:
        weights: The offloaded weights by name.
    """

    def __init__(self, weights: Mapping[str, torch.Tensor]) -> None:
        self.weights = weights
        self._handles: list[Any] = []

    def init_hook(self, module: M) -> M:
        """Register the hooks of the model."""
        hooked: Any = module
        self._handles = [
            hooked.register_state_dict_post_hook(functools.partial(_fill, self.weights)),
            hooked.register_load_state_dict_pre_hook(
                functools.partial(_refuse, "load_state_dict", "numbers for them would be lost")
            ),
        ]
        compiling = functools.partial(_refuse, "torch.compile", "its graph would keep weights that are gone")
        moving = functools.partial(
            _refuse, "a move or change of dtype", "they would miss the weights that are elsewhere"
        )
        module.__dict__.update(dict.fromkeys((*_BEFORE_COMPILED, "compile"), compiling), _apply=moving)
        return module

    def detach_hook(self, module: M) -> M:
        """Remove the hooks of the model."""
        for handle in self._handles:
            handle.remove()
        for name in (*_BEFORE_COMPILED, "compile", "_apply"):
            del module.__dict__[name]
        return module


def _fill(weights: Mapping[str, torch.Tensor], module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    """Put values in place of meta tensors. Tied weights share theirs."""
    known: dict[int, torch.Tensor] = {}
    for name, tensor in named_tensors(module).items():
        held = state.get(prefix + name)
        if name in weights and isinstance(held, torch.Tensor) and held.is_meta:
            if id(tensor) not in known:
                known[id(tensor)] = weights[name]
            state[prefix + name] = known[id(tensor)]


def _refuse(what: str, why: str, *_: Any, **__: Any) -> NoReturn:
    reason = f"it has offloaded weights, and {why}; remove_hook_from_submodules(model) brings them back"
    raise CannotRun(f"{what} of a dispatched model", [reason])


def require_whole_model(model: nn.Module) -> None:
    """Raise if a model cannot be trained, as it is offloaded or on several devices.

    Raises:
        CannotRun: Parts of the model are offloaded, or on several devices.
    """
    device_map: Mapping[str, Any] = model.__dict__.get("hf_device_map") or {}
    devices = sorted({str(device) for device in device_map.values()})
    elsewhere = list(offloaded_parameters(model))
    if len(devices) > 1 or "disk" in devices or elsewhere:
        raise CannotRun(
            "training a dispatched model",
            [
                f"its parts are on {', '.join(devices) or 'the host'}, and {len(elsewhere)} of its weights are"
                " offloaded and have no gradients; load it on one device (device_map={'': device}), or shard it:"
                " Accelerator(strategy='fsdp2')"
            ],
        )


def require_held(parameters: Iterable[torch.Tensor]) -> None:
    """Raise if parameters of an optimizer are offloaded.

    Raises:
        CannotRun: Some are offloaded.
    """
    count = sum(MARK in parameter.__dict__ for parameter in parameters)
    if count:
        reason = f"{count} of its parameters are offloaded, and have neither numbers nor gradients"
        raise CannotRun("an optimizer of a dispatched model", [reason])
