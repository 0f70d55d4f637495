"""Run the forward of a model under autocast, and convert its outputs to one dtype."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import nn

from accel_amp.policy import PrecisionPolicy

_HALF = (torch.float16, torch.bfloat16)


def autocast(policy: PrecisionPolicy, device_type: str, *, enabled: bool = True) -> AbstractContextManager[Any]:
    """Return a context in which operations compute in the dtype of the policy.

    Args:
        policy: The dtypes; without a dtype to compute in, the context does nothing.
        device_type: Type of the device of the operations, such as "cuda".
        enabled: False computes in the dtypes of the inputs.
    """
    if policy.compute is None:
        return nullcontext()
    return torch.autocast(device_type, dtype=policy.compute, enabled=enabled, cache_enabled=policy.cache)


class AutocastForward:
    """A forward that computes in the dtype of the policy, and converts half-precision outputs.

    Args:
        forward: The forward to call.
        policy: The dtypes of operations and outputs.
        device_type: Type of the device of the operations, such as "cuda".
    """

    def __init__(self, forward: Callable[..., Any], policy: PrecisionPolicy, device_type: str) -> None:
        self.forward = forward
        self.policy = policy
        self.device_type = device_type
        # Tools look at a forward's name and signature, through __wrapped__.
        self.__wrapped__ = forward
        self.__name__ = "forward"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with autocast(self.policy, self.device_type):
            outputs = self.forward(*args, **kwargs)
        return outputs if self.policy.output is None else _cast(outputs, self.policy.output)


def wrap_forward(model: nn.Module, policy: PrecisionPolicy, device_type: str) -> nn.Module:
    """Put the forward of `model` under autocast, and return `model` itself.

    Args:
        model: The model to change.
        policy: The dtypes; without a dtype to compute in, nothing is changed.
        device_type: Type of the device of the model, such as "cuda".
    """
    if policy.compute is not None and not isinstance(model.__dict__.get("forward"), AutocastForward):
        model.forward = AutocastForward(model.forward, policy, device_type)
    return model


def unwrap_forward(model: nn.Module) -> nn.Module:
    """Restore the forward from before `wrap_forward`, and return `model` itself."""
    wrapped = model.__dict__.get("forward")
    if isinstance(wrapped, AutocastForward):
        del model.__dict__["forward"]
        if getattr(model.forward, "__func__", None) is not getattr(wrapped.forward, "__func__", wrapped.forward):
            model.forward = wrapped.forward
    return model


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """Convert every half-precision tensor in `value`, however deep, to `dtype`."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.dtype in _HALF else value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_cast(item, dtype) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(_cast(item, dtype) for item in value)
    if isinstance(value, Mapping):
        # In place: the output object of a model has more attributes than its items.
        if type(value) is dict:
            return {key: _cast(item, dtype) for key, item in value.items()}
        for key, item in list(value.items()):
            value[key] = _cast(item, dtype)  # type: ignore[index] # it is mutable: asked above
        return value
    if is_dataclass(value) and not isinstance(value, type):
        twin = copy(value)
        for field in fields(value):
            if hasattr(value, field.name):
                object.__setattr__(twin, field.name, _cast(getattr(value, field.name), dtype))  # it may be frozen
        return twin
    return value
