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

from accel_chaos.step_log import WEIGHTS


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return what this process holds of a tensor, on the CPU."""
    tensor = tensor.detach()
    held = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return held.cpu().contiguous()


def digest(value: Any) -> str:
    """Return a digest of nested values, equal for equal values.

    Objects that are neither numbers, text nor collections count by their type.
    """
    hashed = hashlib.blake2b(digest_size=8)
    _feed(value, hashed)
    return hashed.hexdigest()


def _feed(value: Any, hashed: Any) -> None:
    if isinstance(value, torch.Tensor):
        held = local_part(value)
        hashed.update(f"{held.dtype}{tuple(held.shape)}".encode())
        hashed.update(view_bytes(held))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            hashed.update(repr(key).encode())
            _feed(item, hashed)
    elif isinstance(value, list | tuple):
        for item in value:
            _feed(item, hashed)
    elif hasattr(value, "tobytes"):  # of numpy
        hashed.update(value.tobytes())
    else:
        plain = isinstance(value, int | float | str | bytes | bool | type(None))
        hashed.update((repr(value) if plain else type(value).__name__).encode() + b";")


def sample_digests(inputs: Any) -> list[str]:
    """Return a digest of each sample in the arguments of a forward: of each row of tensors of the most common length.

    Args:
        inputs: Nested arguments.
    """
    tensors = [tensor.detach().cpu() for tensor in _tensors(inputs) if tensor.dim()]
    lengths = [len(tensor) for tensor in tensors]
    if not tensors:
        return []
    rows = max(sorted(set(lengths)), key=lengths.count)
    whole = [tensor for tensor in tensors if len(tensor) == rows]
    return [digest([tensor[row] for tensor in whole])[:12] for row in range(rows)]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping | Sequence) and not isinstance(value, str | bytes):
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
        self._others: list[nn.Module] = []
        self._schedulers: list[LRScheduler] = []

    def look_around(self) -> None:
        """Find the modules and schedulers that were not prepared."""
        inside: set[int] = {id(part) for model in self.models for part in model.modules()}
        known = {id(parameter) for model in self.models for parameter in model.parameters()}
        objects = gc.get_objects()
        modules = [found for found in objects if issubclass(type(found), nn.Module)]
        for module in modules:
            inside.update(id(part) for part in list(module.modules())[1:])
        self._others = [
            module
            for module in modules
            if id(module) not in inside and any(id(parameter) not in known for parameter in module.parameters())
        ]
        self._schedulers = [
            found
            for found in objects
            if issubclass(type(found), LRScheduler) and getattr(found, "optimizer", None) is not None
        ]

    def weights(self) -> str:
        """Return a digest of the parameters of the prepared models."""
        return digest([dict(model.named_parameters()) for model in self.models])

    def states(self) -> dict[str, str]:
        """Return a digest of each state, by its name."""
        states = {
            WEIGHTS: self.weights(),
            "buffers": digest([dict(model.named_buffers()) for model in self.models]),
            "optimizer state": digest([_state_of(optimizer) for optimizer in self.optimizers]),
            "random numbers of torch": digest(torch.get_rng_state()),
            "random numbers of Python": digest(random.getstate()),
        }
        if (numpy := sys.modules.get("numpy")) is not None:
            states["random numbers of NumPy"] = digest(numpy.random.get_state())
        for name, module in _numbered(self._others):
            states[f"the module {name}"] = digest(module.state_dict())
        for name, scheduler in _numbered(self._schedulers):
            states[f"the scheduler {name}"] = digest(scheduler.state_dict())
        if self.accelerator is not None:
            if self.accelerator.scaler is not None:
                states["loss scale"] = digest(self.accelerator.scaler.state_dict())
            for name, registered in self.accelerator.checkpoints.registry.objects.items():
                if not isinstance(registered, nn.Module | LRScheduler):
                    states[f"the object {name}"] = digest(registered.state_dict())
        return states

    def rates(self) -> list[float]:
        """Return the learning rates of all groups."""
        return [float(group["lr"]) for optimizer in self.optimizers for group in optimizer.param_groups]

    def final(self) -> dict[str, torch.Tensor]:
        """Return the weights of all modules, whole.

        Collective:
            Every process must call, if a model is sharded.
        """
        found = [(f"model {number}", model) for number, model in enumerate(self.models)]
        tensors = {}
        for owner, module in [*found, *_numbered(self._others)]:
            for name, tensor in module.state_dict().items():
                if isinstance(tensor, torch.Tensor):
                    whole: Any = tensor.detach()
                    whole = whole.full_tensor() if hasattr(whole, "full_tensor") else whole
                    tensors[f"{owner}: {name}"] = whole.cpu().clone()
        return tensors


def _state_of(optimizer: Optimizer) -> list[Any]:
    """Return the state of an optimizer in the order of its parameters, without learning rates."""
    return [[optimizer.state.get(parameter, {}) for parameter in group["params"]] for group in optimizer.param_groups]


def _numbered(found: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Return objects under the names of their classes, with numbers if a class has several."""
    counts: dict[str, int] = {}
    for one in found:
        kind = type(one).__name__
        counts[kind] = counts.get(kind, 0) + 1
        yield kind if counts[kind] == 1 else f"{kind} {counts[kind]}", one
