"""The functions of accel-ops, bound to the run of this process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import accel_ops
import torch
from accel_comm import Reduction, Transport
from accel_state import PartialState


def _transport() -> Transport:
    return PartialState().run.transport


def _data_transport() -> Transport:
    return PartialState().run.data_transport


def gather(tensor: Any) -> Any:
    """Nested tensors of all processes, joined along dim 0. Collective."""
    return accel_ops.gather(tensor, _data_transport())


def gather_object(object: Any) -> Any:
    """The lists of all processes, joined in rank order. Collective."""
    return accel_ops.gather_object(object, _data_transport())


def broadcast(tensor: Any, from_process: int = 0) -> Any:
    """Nested tensors of one process, on all. Collective."""
    return accel_ops.broadcast(tensor, _transport(), source=from_process)


def broadcast_object_list(object_list: list[Any], from_process: int = 0) -> list[Any]:
    """The list, overwritten in place by that of one process. Collective."""
    return accel_ops.broadcast_object_list(object_list, _transport(), source=from_process)


def copy_tensor_to_devices(tensor: torch.Tensor | None = None) -> torch.Tensor:
    """The tensor of the one process that has one, on the device of each; the others give None. Collective.

    Raises: ValueError on every process unless exactly one has a tensor.
    """
    run = PartialState().run
    having = run.transport.all_gather_objects(tensor is not None, "copy_tensor_to_devices")
    if sum(having) != 1:
        given = ", ".join(str(rank) for rank, has_tensor in enumerate(having) if has_tensor) or "none"
        size = len(having)
        raise ValueError(f"copy_tensor_to_devices: processes {given} gave a tensor; expected exactly one of {size}")
    mine: Any = None if tensor is None else tensor.detach().cpu()
    sent: torch.Tensor = run.transport.broadcast_object(mine, having.index(True))
    return sent.to(run.placed_on)


def reduce(tensor: Any, reduction: Reduction = "mean", scale: float = 1.0) -> Any:
    """Nested tensors of all processes, combined element by element. Collective."""
    return accel_ops.reduce(tensor, _data_transport(), how=reduction, scale=scale)


def pad_across_processes(tensor: Any, dim: int = 0, pad_index: float = 0, pad_first: bool = False) -> Any:
    """Nested tensors as long along `dim` as the longest process's. Collective."""
    return accel_ops.pad_across_processes(tensor, _data_transport(), dim=dim, pad_index=pad_index, pad_first=pad_first)


def synchronize_rng_state(rng_type: str | None = None, generator: torch.Generator | None = None) -> None:
    """Puts one random generator where that of the main process stands. Collective."""
    run = PartialState().run
    accel_ops.synchronize_rng_state(rng_type, generator, transport=run.transport, device=run.device)


def synchronize_rng_states(rng_types: Iterable[str], generator: torch.Generator | None = None) -> None:
    """Puts random generators where those of the main process stand. Collective."""
    run = PartialState().run
    accel_ops.synchronize_rng_states(rng_types, generator, transport=run.transport, device=run.device)


def set_seed(seed: int, device_specific: bool = False, deterministic: bool = False) -> None:
    """Seeds Python, NumPy and torch; if device-specific, one seed for each process that has samples of its own.

    Processes that divide layers train on the same samples, and have to drop out alike.
    """
    rank = 0
    if device_specific:
        run = PartialState().run
        rank = run.mesh.data_rank(run.topology.rank)
    accel_ops.set_seed(seed, device_specific, deterministic, rank=rank)
