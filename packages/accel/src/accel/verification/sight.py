"""What an optimizer holds when it steps, by the names that the models give their parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer


def names_of(models: Sequence[nn.Module]) -> dict[int, str]:
    """The name of each parameter, by its identity; with the number of its model where there are several."""
    found: dict[int, str] = {}
    for number, model in enumerate(models):
        prefix = f"model{number}." if len(models) > 1 else ""
        for name, parameter in model.named_parameters():
            found.setdefault(id(parameter), prefix + name)
    return found


def held(optimizer: Optimizer, names: dict[int, str]) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Each parameter of the optimizer's groups, with its name."""
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            yield names.get(id(parameter), f"(unnamed {number}.{place})"), parameter


def gradients(optimizer: Optimizer, names: dict[int, str]) -> dict[str, torch.Tensor]:
    """Copies of the gradients of all parameters that have one; sparse ones written out."""
    return {name: one.grad.detach().to_dense().clone() for name, one in held(optimizer, names) if one.grad is not None}


def parameters(optimizer: Optimizer, names: dict[int, str]) -> dict[str, torch.Tensor]:
    """Copies of all parameters."""
    return {name: one.detach().clone() for name, one in held(optimizer, names)}


def rates(optimizer: Optimizer) -> list[float]:
    """The learning rate of each group."""
    return [float(group["lr"]) for group in optimizer.param_groups]


def dtypes(optimizer: Optimizer, names: dict[int, str]) -> dict[str, str]:
    """The dtype of each parameter, and of what the optimizer keeps for it."""
    found = {}
    for name, parameter in held(optimizer, names):
        found[name] = str(parameter.dtype)
        state: dict[str, Any] = optimizer.state.get(parameter, {})
        for key, value in state.items():
            # a count of steps may be in another format
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.shape == parameter.shape:
                found[f"{key} of {name}"] = str(value.dtype)
    return found


def overflowed(optimizer: Optimizer) -> bool:
    """Whether any gradient has an inf or nan."""
    grads = [one.grad for group in optimizer.param_groups for one in group["params"] if one.grad is not None]
    return any(not bool(torch.isfinite(grad).all()) for grad in grads)
