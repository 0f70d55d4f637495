"""Make digests of all that the next step of a training depends on."""

from __future__ import annotations

import gc
import hashlib
from functools import cached_property
from typing import Any

import torch
from accel import Accelerator
from accel_checkpoint.tensor_file import view_bytes
from accel_ops.content_hash import content_number
from accel_ops.process_rng import capture
from accel_ops.tree import leaves
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from accel_chaos.history import DRAWN, MOMENTS, RATES, SCALE, WEIGHTS


def _objects(kind: type) -> list[Any]:
    """Return all objects of a kind in this process."""
    # not isinstance(), which asks a proxy for its class
    return [found for found in gc.get_objects() if issubclass(type(found), kind)]


def _named(what: str, objects: list[Any]) -> dict[str, Any]:
    """Return objects by their names as states."""
    return {f"{what} {type(one).__name__} (number {number})": one for number, one in enumerate(objects, 1)}


def whole(tensor: Any) -> Any:
    """Return a tensor on the CPU, gathered if it is divided."""
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().cpu().contiguous()


def digest(value: Any) -> str:
    """Return a digest of nested values, equal for equal values in every process."""
    hashed = hashlib.blake2b(digest_size=6)
    for _, leaf in leaves(value):
        if isinstance(leaf, torch.Tensor):
            held = whole(leaf)  # has to live as long as the view
            hashed.update(view_bytes(held))
        else:
            hashed.update(str(content_number(leaf)).encode())
    return hashed.hexdigest()


def sample_digests(inputs: Any) -> list[str]:
    """Return a digest of each sample in the arguments of a forward: each row of the first tensor and others as long.

    Args:
        inputs: Nested arguments.
    """
    tensors = [leaf.detach().cpu() for _, leaf in leaves(inputs) if isinstance(leaf, torch.Tensor) and leaf.dim()]
    return [digest(row) for row in zip(*(tensor for tensor in tensors if len(tensor) == len(tensors[0])), strict=True)]


class TrainingState:
    """The objects of a script whose states the next step depends on: what was prepared, and other modules."""

    #: the Accelerator that prepares
    accelerator: Accelerator

    def __init__(self) -> None:
        self.models: list[nn.Module] = []
        self.optimizers: list[Optimizer] = []

    @cached_property
    def others(self) -> dict[str, nn.Module]:
        """The modules with parameters that nobody has prepared, among all objects of the process at first sight."""
        known = {id(parameter) for model in self.models for parameter in model.parameters()}
        modules = _objects(nn.Module)
        inner = {id(part) for module in modules for part in module.children()}
        unknown = [one for one in modules if not known.issuperset(map(id, one.parameters()))]
        return _named("the module", [one for one in unknown if id(one) not in inner])

    @cached_property
    def schedulers(self) -> dict[str, LRScheduler]:
        """The schedulers among all objects of the process at first sight."""
        return _named("the scheduler", _objects(LRScheduler))

    def weights(self) -> str:
        """Return a digest of the parameters of the prepared models."""
        return digest([dict(model.named_parameters()) for model in self.models])

    def states(self) -> dict[str, str]:
        """Return a digest of each state, by its name."""
        state: dict[str, Any] = {
            # in the order of parameters, and without learning rates
            MOMENTS: [sorted(optimizer.state_dict()["state"].items()) for optimizer in self.optimizers],
            RATES: [group["lr"] for optimizer in self.optimizers for group in optimizer.param_groups],
            DRAWN: capture(self.accelerator.run.device),
            SCALE: self.accelerator.scaler and self.accelerator.scaler.state_dict(),
            **{name: module.state_dict() for name, module in self.others.items()},
            # those that are chained have no count of their own
            **{name: getattr(scheduler, "last_epoch", None) for name, scheduler in self.schedulers.items()},
        }
        return {WEIGHTS: self.weights(), **{name: digest(value) for name, value in state.items()}}

    def final(self) -> dict[str, torch.Tensor]:
        """Return the weights of all modules, whole.

        Collective:
            Every process must call, if a model is sharded.
        """
        states = [module.state_dict() for module in (*self.models, *self.others.values())]
        return {name: whole(value).clone() for name, value in leaves(states) if isinstance(value, torch.Tensor)}
