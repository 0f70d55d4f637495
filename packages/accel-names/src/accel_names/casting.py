"""Let layers keep their weights in a small dtype, and compute in a larger one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch
from accel_ops import recursively_apply
from torch import nn

#: the classes of layers whose weights can be kept in a small dtype
SUPPORTED_PYTORCH_LAYERS_FOR_UPCASTING = (nn.Linear, nn.modules.conv._ConvNd)


def attach_layerwise_casting_hooks(
    module: nn.Module,
    storage_dtype: torch.dtype,
    compute_dtype: torch.dtype,
    skip_modules_pattern: str | Iterable[str] | None = None,
    skip_modules_classes: tuple[type[nn.Module], ...] | None = None,
    non_blocking: bool = False,
) -> None:
    """Keep the weights of linear and convolution layers in a small dtype between their forwards.

    Args:
        module: The model.
        storage_dtype: The dtype between forwards.
        compute_dtype: The dtype that a forward computes in.
        skip_modules_pattern: Patterns of names; a layer whose name has one stays as it is.
        skip_modules_classes: Classes of layers that stay as they are.
        non_blocking: Whether a conversion may go on while the program does.
    """
    patterns = [skip_modules_pattern] if isinstance(skip_modules_pattern, str) else list(skip_modules_pattern or ())
    _attach("", module, patterns, tuple(skip_modules_classes or ()), (storage_dtype, compute_dtype, non_blocking))


def _attach(
    name: str, module: nn.Module, patterns: list[str], skipped: tuple[Any, ...], dtypes: tuple[Any, Any, bool]
) -> None:
    if isinstance(module, skipped) or any(re.search(pattern, name) for pattern in patterns):
        return
    if not isinstance(module, SUPPORTED_PYTORCH_LAYERS_FOR_UPCASTING):
        for child, part in module.named_children():
            _attach(f"{name}.{child}".lstrip("."), part, patterns, skipped, dtypes)
        return
    storage, compute, non_blocking = dtypes
    module.to(storage, non_blocking=non_blocking)

    def before(layer: nn.Module, args: Any, kwargs: Any) -> Any:
        layer.to(compute, non_blocking=non_blocking)
        return recursively_apply(_to(compute), args), recursively_apply(_to(compute), kwargs)

    def after(layer: nn.Module, _: Any, outputs: Any) -> Any:
        layer.to(storage, non_blocking=non_blocking)
        return outputs

    module.register_forward_pre_hook(before, with_kwargs=True)
    module.register_forward_hook(after, always_call=True)


def _to(dtype: torch.dtype) -> Any:
    return lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor
