"""Put what was saved into objects, in such a way that one that refuses leaves all as they were."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import torch
from torch import nn

from accel.checkpoint.consensus import problems_of
from accel.checkpoint.loaded_checkpoint import LoadedCheckpoint, foreign_hooks
from accel.checkpoint.registry import CheckpointRegistry, StatefulItem


def cannot_refuse(model: nn.Module) -> bool:
    """Return True if a model takes any weights of its names, shapes and dtypes.

    No code but torch's is asked about them, and each tensor has a place of its own for each number.
    """
    tensors = [value for value in model.state_dict(keep_vars=True).values() if isinstance(value, torch.Tensor)]
    if any(tensor.is_inference() or (0 in tensor.stride() and tensor.numel() > 1) for tensor in tensors):
        return False
    return all(
        getattr(type(module), method).__module__.partition(".")[0] == "torch" and not foreign_hooks(module)
        for module in model.modules()
        for method in ("load_state_dict", "_load_from_state_dict", "set_extra_state")
    )


def put(
    checkpoint: LoadedCheckpoint,
    registry: CheckpointRegistry,
    items: Sequence[StatefulItem],
    models: Mapping[str, nn.Module],
) -> tuple[list[str], Callable[[], None]]:
    """Load everything up to the first object that refuses.

    Args:
        checkpoint: The checkpoint.
        registry: What a checkpoint holds.
        items: What has a state besides models, in the order in which it is loaded.
        models: The models, by name.

    Returns:
        Why an object refused, if one did, and a function that gives all objects what they had.

    Collective:
        Every process must call, for loaders whose state is spread over processes.
    """
    undo: list[Callable[[], None]] = []
    name = ""
    problems: list[str] = []
    remember = registry.components.steps.remember
    try:
        if remember is not None:  # the parts of this rank, in place of whole states on all
            undo.append(remember())
        for item in items:
            name = item.name
            with registry.keeping_whole_states(remember is None):
                undo.append(partial(item.load, copy.deepcopy(item.state()) if item.users_own else item.state()))
            item.load(checkpoint.state(item))
        for name, model in models.items():
            with registry.keeping_whole_states(remember is None):
                undo.append(partial(model.load_state_dict, copy.deepcopy(model.state_dict()), strict=remember is None))
            checkpoint.load_model(name, model)
    except Exception as error:  # noqa: BLE001 - code of the user's refuses, and all processes are to hear of it
        problems.append(f"{name}: {type(error).__name__}: {error}")

    def put_back() -> None:
        for load_old_state in reversed(undo):
            with suppress(Exception):  # an object that cannot load may not be able to do this either
                load_old_state()

    return problems, put_back


def put_weights(checkpoint: LoadedCheckpoint, models: Mapping[str, nn.Module]) -> list[str]:
    """Load models that cannot refuse, of which no copy is needed, and return what went wrong all the same."""
    for name, model in models.items():
        if problems := problems_of(partial(checkpoint.load_model, name, model), f"{name}: "):
            return problems
    if checkpoint.was_moved():
        return ["another job has replaced it meanwhile: weights may be of one, and the rest of the other"]
    return []
