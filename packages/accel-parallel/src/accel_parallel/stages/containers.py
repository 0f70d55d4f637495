"""Take a module out of its containers: of strategies, of torch's parallel modules, and of torch.compile."""

from __future__ import annotations

import sys
from collections.abc import Callable

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel


def inside(model: nn.Module, unwrap: Callable[[nn.Module], nn.Module], *, keep_compile: bool = True) -> nn.Module:
    """Return the module in all containers.

    Args:
        model: The module, maybe in containers.
        unwrap: Returns the module in a container of the strategy, and any other module as it is.
        keep_compile: Whether a compiled module stays compiled, without the containers in it.
    """
    model = _uncontained(model, unwrap)
    original = uncompiled(model)
    if original is model:
        return model
    inner = inside(original, unwrap, keep_compile=keep_compile)
    if not keep_compile or inner is original:
        return inner if not keep_compile else model
    # another compiled module with the same options: the given one goes on with its container
    return type(model)(inner, model.dynamo_ctx)


def _uncontained(model: nn.Module, unwrap: Callable[[nn.Module], nn.Module]) -> nn.Module:
    while True:
        inner = unwrap(model)
        if isinstance(inner, DataParallel | DistributedDataParallel):
            inner = inner.module
        if inner is model:
            return model
        model = inner


def uncompiled(model: nn.Module) -> nn.Module:
    """Return the module that torch.compile was given, or the model itself if it is not compiled."""
    # Nothing is compiled while the module that compiles has not been imported, which takes seconds.
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    if dynamo is None or not isinstance(model, dynamo.OptimizedModule):
        return model
    original: nn.Module = model._orig_mod
    return original
