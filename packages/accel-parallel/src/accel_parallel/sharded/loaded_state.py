"""Shard the whole weights that a script loads into a sharded model, or a whole state into its optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from accel_parallel.rebind import placed_like


def divide_loaded(model: nn.Module) -> None:
    """Let `load_state_dict` of the model and its modules take whole weights, those of rank 0."""
    for module in model.modules():
        module.register_load_state_dict_pre_hook(_divide)  # type: ignore[no-untyped-call] # of torch


def divide_loaded_state(optimizer: Optimizer) -> None:
    """Let `load_state_dict` of an optimizer of sharded parameters take a whole state, as of one process."""
    optimizer.register_load_state_dict_post_hook(_divide_state)


@torch.no_grad()
def _divide(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for name, parameter in module._parameters.items():
        value = state.get(prefix + name)
        if isinstance(parameter, DTensor) and not isinstance(value, DTensor):
            state[prefix + name] = placed_like(value, parameter, parameter)


def _divide_state(optimizer: Optimizer) -> None:
    for parameter, state in optimizer.state.items():
        state.update((key, placed_like(value, parameter, parameter)) for key, value in state.items())
