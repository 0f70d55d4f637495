"""Compile modules in place, which stay the modules that they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn


def compile_in_place(modules: Iterable[nn.Module], **options: Any) -> None:
    """Let each module run compiled code from its first call on.

    Args:
        modules: The modules, each of which is compiled by itself.
        **options: The options of torch.compile.
    """
    for module in modules:
        if type(module).__module__.startswith("torch.nn."):
            # frames of torch's own modules are not compiled by themselves; what a function of ours calls is
            module._compiled_call_impl = torch.compile(_calling(module), **options)
        else:
            module.compile(**options)


def _calling(module: nn.Module) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call] # of torch

    return call
