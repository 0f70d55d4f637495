"""Save and load models, optimizers and schedulers, and compare them with what they were."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator
from typing import Any

import torch
from accel import Accelerator, CheckpointError, load_checkpoint_in_model
from accel.optimizer import AcceleratedOptimizer
from accel.scheduler import AcceleratedScheduler
from torch import nn


def model_changes(accelerator: Accelerator, model: nn.Module) -> list[str]:
    """Return the parameters and buffers that `save_model` and `load_checkpoint_in_model` change.

    Args:
        accelerator: The Accelerator that prepared the model.
        model: A prepared model. It has the loaded values afterwards.

    Returns:
        A phrase for each tensor, or one phrase with the error if the saved weights do not load.
    """
    inner = accelerator.unwrap_model(model)
    before = {name: tensor.detach().clone() for name, tensor in inner.state_dict().items()}
    with tempfile.TemporaryDirectory() as folder:
        accelerator.save_model(model, folder)
        with torch.no_grad():
            for tensor in inner.state_dict().values():
                tensor.fill_(0 if tensor.numel() and bool(tensor.flatten()[0] != 0) else 1)
        try:
            load_checkpoint_in_model(inner, folder, strict=True)
        except CheckpointError as error:
            return [f"the weights that were saved do not load: {error}"]
    after = inner.state_dict()
    return [f"{name} of the model" for name, tensor in after.items() if not torch.equal(tensor, before[name])]


def state_changes(prepared: AcceleratedOptimizer | AcceleratedScheduler, initial: dict[str, Any]) -> list[str]:
    """Return the entries of a state that `state_dict` and `load_state_dict` change.

    Args:
        prepared: A prepared optimizer or scheduler. It has the loaded state afterwards.
        initial: Its state from before training, which is loaded in between.

    Returns:
        A phrase for each entry.
    """
    owner = "optimizer" if isinstance(prepared, AcceleratedOptimizer) else "scheduler"
    inner: Any = getattr(prepared, owner)
    before, saved = copy.deepcopy(inner.state_dict()), copy.deepcopy(prepared.state_dict())
    inner.load_state_dict(initial)
    prepared.load_state_dict(saved)
    old, new = dict(_leaves(before)), dict(_leaves(inner.state_dict()))
    return [f"{path} of the {owner}'s state" for path in {**old, **new} if not _same(old.get(path), new.get(path))]


def _leaves(state: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    if not isinstance(state, dict | list | tuple):
        yield " ".join(path), state
        return
    for key, value in state.items() if isinstance(state, dict) else enumerate(state):
        yield from _leaves(value, (*path, str(key)))


def _same(old: Any, new: Any) -> bool:
    if isinstance(old, torch.Tensor):
        return isinstance(new, torch.Tensor) and old.dtype == new.dtype and torch.equal(old, new)
    # an object of a class of the user: its copy need not be equal
    return bool(old == new) if isinstance(old, int | float | str | type(None)) else True
