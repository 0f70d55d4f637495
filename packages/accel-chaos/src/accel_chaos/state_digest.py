"""Make digests of all that the next step of a training depends on."""

from __future__ import annotations

import gc
import hashlib
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from accel import Accelerator
from accel_checkpoint.tensor_file import view_bytes
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from accel_chaos.history import MOMENTS, SCALE, WEIGHTS


def whole(tensor: Any) -> torch.Tensor:
    """Return a tensor on the CPU, gathered if it is divided."""
    held = tensor.detach()
    kept: torch.Tensor = held.full_tensor() if hasattr(held, "full_tensor") else held
    return kept.cpu().contiguous()


def digest(value: Any) -> str:
    """Return a digest of nested values, equal for equal values.

    Objects that are neither tensors, numbers, text nor collections count by their type.
    """
    hashed = hashlib.blake2b(digest_size=6)
    for part in _parts(value):
        hashed.update(part)
    return hashed.hexdigest()


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        held = whole(value)
        yield from (f"{held.dtype}{held.shape}".encode(), view_bytes(held))
    elif isinstance(value, Mapping | list | tuple):
        for item in value.items() if isinstance(value, Mapping) else value:
            yield from _parts(item)
    elif hasattr(value, "tobytes"):  # of numpy
        yield value.tobytes()
    else:
        plain = isinstance(value, int | float | str | bytes | type(None))
        yield (repr(value) if plain else type(value).__name__).encode()


def sample_digests(inputs: Any) -> list[str]:
    """Return a digest of each sample in the arguments of a forward: of each row of tensors of the most common length.

    Args:
        inputs: Nested arguments.
    """
    tensors = [tensor.detach().cpu() for tensor in _tensors(inputs) if tensor.dim()]
    lengths = [len(tensor) for tensor in tensors]
    rows = max(lengths, key=lengths.count, default=0)
    return [digest([tensor[row] for tensor in tensors if len(tensor) == rows]) for row in range(rows)]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping | Sequence) and not isinstance(value, str):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(item)


class TrainingState:
    """The objects of a script whose states the next step depends on.

    Models and optimizers are those that were prepared. Modules and schedulers that nobody has prepared are looked for
    among all objects of the process, once.
    """

    def __init__(self) -> None:
        self.accelerator: Accelerator | None = None
        self.models: list[nn.Module] = []
        self.optimizers: list[Optimizer] = []
        #: the modules and schedulers, by their names
        self._others: dict[str, Any] = {}

    def look_around(self) -> None:
        """Find the modules and schedulers that were not prepared."""
        known = {id(parameter) for model in self.models for parameter in model.parameters()}
        objects = gc.get_objects()
        modules = [found for found in objects if issubclass(type(found), nn.Module)]
        inner = {id(part) for module in modules for part in module.modules() if part is not module}
        found = [
            *(
                one
                for one in modules
                if id(one) not in inner and any(id(part) not in known for part in one.parameters())
            ),
            *(one for one in objects if issubclass(type(one), LRScheduler) and hasattr(one, "optimizer")),
        ]
        for number, one in enumerate(found, 1):
            kind = "module" if isinstance(one, nn.Module) else "scheduler"
            self._others[f"the {kind} {type(one).__name__} (number {number})"] = one

    def weights(self) -> str:
        """Return a digest of the parameters of the prepared models."""
        return digest([dict(model.named_parameters()) for model in self.models])

    def states(self) -> dict[str, str]:
        """Return a digest of each state, by its name."""
        numpy = sys.modules.get("numpy")
        state: dict[str, Any] = {
            "buffers": [dict(model.named_buffers()) for model in self.models],
            # without learning rates, and in the order of parameters
            MOMENTS: [
                optimizer.state.get(parameter, {})
                for optimizer in self.optimizers
                for group in optimizer.param_groups
                for parameter in group["params"]
            ],
            "random numbers of torch": torch.get_rng_state(),
            "random numbers of Python": random.getstate(),
            "random numbers of NumPy": numpy and numpy.random.get_state(),
        }
        state |= {name: one.state_dict() for name, one in self._others.items()}
        if self.accelerator is not None and self.accelerator.scaler is not None:
            state[SCALE] = self.accelerator.scaler.state_dict()
        return {WEIGHTS: self.weights(), **{name: digest(value) for name, value in state.items()}}

    def rates(self) -> list[float]:
        """Return the learning rates of all groups."""
        return [float(group["lr"]) for optimizer in self.optimizers for group in optimizer.param_groups]

    def final(self) -> dict[str, torch.Tensor]:
        """Return the weights of all modules, whole.

        Collective:
            Every process must call, if a model is sharded.
        """
        models = {f"model {number}": model for number, model in enumerate(self.models)} | self._others
        modules = [(owner, module) for owner, module in models.items() if isinstance(module, nn.Module)]
        named = [
            (f"{owner}: {name}", value) for owner, module in modules for name, value in module.state_dict().items()
        ]
        return {name: whole(value).clone() for name, value in named if isinstance(value, torch.Tensor)}
