"""Compute buffers that no file of weights has, since their module can compute them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def recompute_unsaved_buffers(model: nn.Module, device: torch.device) -> None:
    """Compute the buffers on the meta device that are never saved, if the model says how.

    Models of Transformers do, by `_init_weights(module)`. Buffers that it leaves alone stay on the meta device.

    Args:
        model: Model to change.
        device: Device for the buffers.
    """
    compute: Any = getattr(model, "_init_weights", None)
    if not callable(compute):
        return
    saved = model.state_dict(keep_vars=True)
    for prefix, module in model.named_modules():
        place = f"{prefix}." if prefix else ""
        unsaved = {
            name: buffer
            for name, buffer in module.named_buffers(recurse=False)
            if buffer.is_meta and place + name not in saved
        }
        # what has weights already is not to get new ones
        if unsaved and all(parameter.is_meta for parameter in module.parameters(recurse=False)):
            _recompute(module, unsaved, compute, device)


def _recompute(module: nn.Module, unsaved: dict[str, torch.Tensor], compute: Any, device: torch.device) -> None:
    empty = {name: torch.empty_like(buffer, device=device) for name, buffer in unsaved.items()}
    # a buffer that was written to has another version
    before = {name: buffer._version for name, buffer in empty.items()}
    for name, buffer in empty.items():
        setattr(module, name, buffer)
    compute(module)
    for name, buffer in unsaved.items():
        if getattr(module, name) is empty[name] and empty[name]._version == before[name]:
            setattr(module, name, buffer)
