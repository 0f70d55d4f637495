"""Let layers keep their weights in a small dtype, and compute in a larger one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch
from accel_ops import recursively_apply
from torch import nn

#: layers whose weights stay: few numbers, which small dtypes would spoil
NORMS = (nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)
PARAMETERS = (nn.Linear, nn.modules.conv._ConvNd, nn.Embedding)


def attach_layerwise_casting_hooks(
    module: nn.Module,
    storage_dtype: torch.dtype,
    compute_dtype: torch.dtype,
    skip_modules_pattern: str | Iterable[str] | None = None,
    skip_modules_classes: tuple[type[nn.Module], ...] | None = None,
    non_blocking: bool = False,
) -> None:
    """Keep the weights of linear, convolution and embedding layers in a small dtype between their forwards.

    Layers of normalisation stay as they are.

    Args:
        module: The model.
        storage_dtype: The dtype between forwards.
        compute_dtype: The dtype that a forward computes in.
        skip_modules_pattern: Patterns of names; a layer whose name has one stays as it is.
        skip_modules_classes: Classes of layers that stay as they are.
        non_blocking: Whether a conversion may go on while the program does.
    """
    patterns = [skip_modules_pattern] if isinstance(skip_modules_pattern, str) else list(skip_modules_pattern or ())
    skipped = (*NORMS, *(skip_modules_classes or ()))
    _attach("", module, patterns, skipped, (storage_dtype, compute_dtype, non_blocking))


def _attach(
    name: str, module: nn.Module, patterns: list[str], skipped: tuple[Any, ...], dtypes: tuple[Any, Any, bool]
) -> None:
    if isinstance(module, skipped) or any(re.search(pattern, name) for pattern in patterns):
        return
    if not isinstance(module, PARAMETERS):
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
