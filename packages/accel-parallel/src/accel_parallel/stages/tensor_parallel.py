"""Shard single layers over ranks, which compute each layer together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

from accel_parallel.rebind import tie_again


def parallelize(
    model: nn.Module,
    styles: Mapping[str, ParallelStyle],
    mesh: DeviceMesh,
    send: Callable[[Iterable[torch.Tensor]], None],
) -> None:
    """Shard layers over the ranks of a mesh, and let their modules exchange in forwards.

    Frozen weights stay frozen, and tied weights tied.

    Args:
        model: Model to change.
        styles: Style of each layer, by its name.
        mesh: Mesh of one dimension.
        send: Makes the weights of a layer equal on all ranks, just before it is sharded.

    Collective:
        Every rank of the mesh must call, and from then on in each forward and backward.
    """
    names = list(model.named_parameters(remove_duplicate=False))
    for path, style in styles.items():
        module = model.get_submodule(path)
        send(module.parameters())
        parallelize_module(module, mesh, style, src_data_rank=None)
        module.register_forward_hook(_make_plain)
    tie_again(model, names)
    for path, parameter in names:
        # older versions of torch make divided weights trainable
        model.get_parameter(path).requires_grad_(parameter.requires_grad)


class _Plain(torch.autograd.Function):
    """The output of a divided layer as an ordinary tensor, with the same gradient."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor) -> Any:
        """Return the tensor that an exchange fills. The host of a GPU does not wait for it, and later kernels do."""
        pending: Any = output
        return pending.trigger_wait() if isinstance(output, AsyncCollectiveTensor) else output.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        """Return the gradient itself."""
        return gradient


def _make_plain(module: nn.Module, inputs: Any, output: Any) -> Any:
    """Return an ordinary tensor, as compiled code gives zeros for a pending one, and fully_shard warns of views."""
    is_plain = torch.compiler.is_compiling() or not isinstance(output, torch.Tensor) or isinstance(output, DTensor)
    return output if is_plain else _Plain.apply(output)  # type: ignore[no-untyped-call] # of torch


def share_generators(mesh: DeviceMesh, device: torch.device) -> None:
    """Let torch's generators follow the first rank of a mesh: what all ranks compute alike drops out alike.

    Args:
        mesh: Mesh of one dimension.
        device: Device of the model.

    Collective:
        Every rank of the mesh must call.
    """
    state = torch.get_rng_state().to(device)
    dist.broadcast(state, group=mesh.get_group(), group_src=0)
    torch.set_rng_state(state.cpu())
    if device.type != "cpu":
        module = torch.get_device_module(device)
        state = module.get_rng_state(device).to(device)
        dist.broadcast(state, group=mesh.get_group(), group_src=0)
        module.set_rng_state(state.cpu(), device)
