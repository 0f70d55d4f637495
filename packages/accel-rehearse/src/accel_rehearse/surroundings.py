"""Change what a script finds around it in a rehearsal: modules, containers, optimizers, and places to write to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import torch
import torch.distributed as dist
from accel import Accelerator
from accel.checkpoint.checkpointer import Checkpointer
from accel.checkpoint.find import CheckpointFinder
from accel.tracking.session import TrackingSession
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from accel_rehearse.refusal import CannotRehearse

torchs: Any = dist  # of which torch has given no types


def convert(module: nn.Module, fn: Any, fakes: Sequence[Any], *, recurse: bool) -> nn.Module:
    """Convert a module with fake parameters, in whose places torch would put others.

    Args:
        module: The module.
        fn: Function of a tensor that returns the converted one.
        fakes: Its own parameters.
        recurse: Whether its children are converted too.
    """
    for child in module.children() if recurse else ():
        child._apply(fn)  # type: ignore[no-untyped-call] # of torch
    with torch.no_grad():
        for parameter in fakes:
            for held in (parameter, parameter.grad):
                if held is not None and (converted := fn(held)) is not held:
                    held.data = converted
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else fn(buffer)
    return module


def exchange_in_python(container: Any) -> None:
    """Give a container a hook that adds up its gradients by a call of Python, if the script has given it none."""
    if not container._comm_hooks and container.__dict__.get("_rehearsed") is not container.reducer:
        container.__dict__["_rehearsed"] = container.reducer
        torchs._register_comm_hook(container.reducer, container.process_group, _add_up)


def _add_up(group: Any, bucket: Any) -> Any:
    work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


@contextmanager
def many_at_once(*, cpu: bool) -> Iterator[None]:
    """Let fakes be among the tensors of which torch changes many at once inside the block.

    Args:
        cpu: Whether the job computes on the CPU, where optimizers change one after the other by default.
    """
    name, listed = "_get_foreach_kernels_supported_devices", "_foreach_supported_types"
    places = [import_module("torch.optim.optimizer"), import_module("torch.utils._foreach_utils")]
    with ExitStack() as stack:
        for place in places:
            kinds = [*getattr(place, listed), FakeTensor]
            stack.enter_context(patch.object(place, listed, kinds))
            if not cpu:
                stack.enter_context(patch.object(place, name, Mock(return_value=["cpu"])))
        yield


@contextmanager
def writing_nothing() -> Iterator[None]:
    """Write no checkpoint, weights or record inside the block, and find none."""
    begin = TrackingSession.__init__

    def untracked(session: TrackingSession, *args: Any, **kwargs: Any) -> None:
        begin(session, *args, **{**kwargs, "main": False})

    nothing = Mock(return_value=None)
    tensor_files: AbstractContextManager[object] = nullcontext()
    if find_spec("safetensors") is not None:  # a library of scripts, which nothing of accel needs
        tensor_files = patch.multiple(
            "safetensors.torch", save_file=nothing, save_model=nothing, save=Mock(return_value=b"")
        )
    with (
        patch.multiple(Accelerator, save_model=nothing, save=nothing),
        patch.multiple(Checkpointer, save=_save, load=nothing, save_and_stop=Mock(side_effect=SystemExit(0))),
        patch.object(CheckpointFinder, "_numbered", Mock(return_value=[])),
        patch("accel.preparation.ConsumptionLog.write", nothing),
        patch.object(TrackingSession, "__init__", untracked),
        patch.object(torch, "save", nothing),
        tensor_files,
        patch.object(torch, "compile", _uncompiled),
    ):
        yield


def _save(checkpointer: Checkpointer, output_dir: str | Path | None = None, *_: object, **__: object) -> Path:
    return Path(output_dir or checkpointer.project.project_dir or ".")


def _uncompiled(model: Any = None, **_: object) -> Any:
    """Return a function as it is, and refuse a model, whose memory a compiler decides."""
    if isinstance(model, nn.Module):
        raise CannotRehearse(
            f"{type(model).__name__} is to be compiled, and then has no memory to follow: leave it out"
        )
    return model or _uncompiled
