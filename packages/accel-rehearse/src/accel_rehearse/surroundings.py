"""Change what a script finds around it in a rehearsal: containers, optimizers, and places to write to."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import Mock, PropertyMock, patch

import torch
from accel import Accelerator
from accel.checkpoint.checkpointer import Checkpointer
from accel.checkpoint.find import CheckpointFinder
from accel.tracking.session import TrackingSession
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.tensor import Shard

from accel_rehearse.refusal import CannotRehearse


def within(owner: Any, name: str, block: Callable[..., Any]) -> Any:
    """Return a patch by which a function of a class or module runs inside a block.

    Args:
        owner: The class or module.
        name: Name of the function.
        block: Returns the block, given the arguments by position, or None if it only takes note of them.
    """
    call = getattr(owner, name)

    def inside(*args: Any, **kwargs: Any) -> Any:
        with block(*args) or nullcontext():
            return call(*args, **kwargs)

    return patch.object(owner, name, inside)


def converting_in_place() -> Any:
    """Return a patch by which fakes that are converted stay the same objects, to which others refer."""
    swap: Any = torch.utils.swap_tensors

    def convert(tensor: torch.Tensor, other: torch.Tensor) -> None:
        if isinstance(tensor, FakeTensor):
            tensor.data = other.data
        else:
            swap(tensor, other)

    return patch.object(torch.utils, "swap_tensors", convert)


@dataclass
class Pieces:
    """The parts into which `fully_shard` divides a tensor, each made when it is asked for: a rank asks for two.

    Args:
        tensor: The tensor.
        count: Number of ranks.
        dim: Dimension to divide.
    """

    tensor: torch.Tensor
    count: int
    dim: int
    __iter__ = None

    def __getitem__(self, index: int) -> torch.Tensor:
        size, begin = Shard.local_shard_size_and_offset(self.tensor.size(self.dim), self.count, index)
        return self.tensor.narrow(self.dim, begin, size)


def exchange_in_python(container: Any, *_: object) -> None:
    """Give a container a hook that adds up its gradients by a call of Python, if it has none."""
    if not container._comm_hooks:
        container.register_comm_hook(container.process_group, allreduce_hook)


def many_at_once(*, cpu: bool) -> list[Any]:
    """Return patches by which fakes may be among the tensors of which torch changes many at once.

    Args:
        cpu: Whether the job computes on the CPU, where optimizers change one after the other by default.
    """
    return [
        patch.multiple(
            module,
            _foreach_supported_types=[torch.Tensor, nn.Parameter, FakeTensor],
            _get_foreach_kernels_supported_devices=Mock(return_value=[] if cpu else ["cpu"]),
        )
        for module in ("torch.optim.optimizer", "torch.utils._foreach_utils")
    ]


def writing_nothing(call: Callable[[str], None]) -> list[Any]:
    """Return patches by which no checkpoint, weights or record is written, and torch loads again what it has saved.

    Args:
        call: Function that takes note of a call that all ranks have to make.
    """
    load = torch.load
    saved: dict[str, Any] = {}

    def keep(value: Any, file: Any, *_: object, **__: object) -> None:
        saved[str(file)] = value

    def loaded(file: Any, *args: Any, **kwargs: Any) -> Any:
        return saved[str(file)] if str(file) in saved else load(file, *args, **kwargs)

    def save(checkpointer: Checkpointer, output_dir: str | Path | None = None, *_: object, **__: object) -> Path:
        if checkpointer._why_not_alone(asynchronous=False):
            call("save_state")
        for owner in checkpointer.registry.objects.values():
            owner.load_state_dict(owner.state_dict())  # as a resume would
        return Path(output_dir or checkpointer.project.project_dir or ".")

    nothing = Mock(return_value=None)
    patches = [
        patch.multiple(Accelerator, save_model=nothing, save=staticmethod(keep)),
        patch.multiple(Checkpointer, save=save, load=nothing, save_and_stop=Mock(side_effect=SystemExit(0))),
        patch.object(CheckpointFinder, "_numbered", Mock(return_value=[])),
        patch("accel_data.ConsumptionLog.write", nothing),
        # no rank is the one that records
        patch.object(TrackingSession, "_main", PropertyMock(return_value=False), create=True),
        patch.multiple(torch, save=keep, load=loaded, compile=_uncompiled),
        patch.object(nn.Module, "compile", _uncompiled),
        patch("accel_parallel.stages.compile._calling", _uncompiled),  # of torch's own modules
    ]
    if find_spec("safetensors"):  # nothing of accel needs it
        patches.append(
            patch.multiple("safetensors.torch", save_file=nothing, save_model=nothing, save=Mock(return_value=b""))
        )
    return patches


def _uncompiled(model: Any = None, **_: object) -> Any:
    """Return a function as it is, and refuse a model, whose memory a compiler decides."""
    if isinstance(model, nn.Module):
        raise CannotRehearse(
            f"{type(model).__name__} is to be compiled, and then has no memory to follow: leave it out"
        )
    return model or _uncompiled
