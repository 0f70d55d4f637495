"""Saves model, optimizers and schedulers, spoils them, loads them, and says what is not as it was."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from accel_checkpoint import CheckpointError, load_checkpoint_in_model
from torch import nn
from torch.optim import Optimizer


def model_changes(model: nn.Module, save: Callable[[Path], object]) -> list[str]:
    """What `save` and `load_checkpoint_in_model` change of the parameters and buffers that the model keeps."""
    before = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder))
        with torch.no_grad():
            for tensor in model.state_dict().values():
                tensor.fill_(0 if tensor.numel() and bool(tensor.flatten()[0] != 0) else 1)
        try:
            load_checkpoint_in_model(model, folder, strict=True)
        except CheckpointError as error:
            return [f"the weights that were saved do not load: {error}"]
    return [
        f"{name} of the model" for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])
    ]


def optimizer_changes(raw: Optimizer, prepared: Any) -> list[str]:
    """What the prepared optimizer's `state_dict` and `load_state_dict` change of the optimizer inside of it."""
    before, saved = copy.deepcopy(raw.state_dict()), copy.deepcopy(prepared.state_dict())
    with torch.no_grad():
        for state in raw.state.values():
            for key, value in state.items():
                state[key] = torch.zeros_like(value) if isinstance(value, torch.Tensor) else value
        for group in raw.param_groups:
            group["lr"] = -1.0
    prepared.load_state_dict(saved)
    return [f"{where} of the optimizer's state" for where in _differing(raw.state_dict(), before)]


def scheduler_changes(raw: Any, prepared: Any) -> list[str]:
    """What the prepared scheduler's `state_dict` and `load_state_dict` change of the scheduler inside of it."""
    before, saved = copy.deepcopy(raw.state_dict()), copy.deepcopy(prepared.state_dict())
    if "last_epoch" in vars(raw):
        raw.last_epoch, raw._step_count = -7, -7
    prepared.load_state_dict(saved)
    return [f"{where} of the scheduler's state" for where in _differing(raw.state_dict(), before)]


def _differing(now: Any, before: Any, where: tuple[str, ...] = ()) -> list[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        keys: Sequence[Any] = [*before, *(key for key in now if key not in before)]
        return [one for key in keys for one in _differing(now.get(key), before.get(key), (*where, str(key)))]
    if isinstance(before, list | tuple) and isinstance(now, list | tuple) and len(before) == len(now):
        pairs = zip(now, before, strict=True)
        return [one for index, (a, b) in enumerate(pairs) for one in _differing(a, b, (*where, str(index)))]
    if isinstance(before, torch.Tensor) and isinstance(now, torch.Tensor):
        same = before.shape == now.shape and before.dtype == now.dtype and torch.equal(before, now)
    elif not isinstance(before, int | float | str | type(None)):  # an object of the user's: a copy is never equal
        same = True
    else:
        same = bool(before == now)
    return [] if same else [" ".join(where)]
