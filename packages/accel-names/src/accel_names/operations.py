"""Call the functions of accel-ops for the run of this process."""

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
    """Join nested tensors of all processes along dim 0.

    Collective:
        Every process must call.
    """
    return accel_ops.gather(tensor, _data_transport())


def gather_object(object: Any) -> Any:
    """Join the lists of all processes in rank order.

    Collective:
        Every process must call.
    """
    return accel_ops.gather_object(object, _data_transport())


def broadcast(tensor: Any, from_process: int = 0) -> Any:
    """Return the nested tensors of one process on all.

    Collective:
        Every process must call, with tensors of like shapes.
    """
    return accel_ops.broadcast(tensor, _transport(), source=from_process)


def broadcast_object_list(object_list: list[Any], from_process: int = 0) -> list[Any]:
    """Put the objects of one process into the list of each.

    Collective:
        Every process must call.
    """
    return accel_ops.broadcast_object_list(object_list, _transport(), source=from_process)


def copy_tensor_to_devices(tensor: torch.Tensor | None = None) -> torch.Tensor:
    """Return the tensor of one process on the device of each.

    Args:
        tensor: The tensor, on one process; None on the others.

    Raises:
        ValueError: On every process, unless exactly one has a tensor.

    Collective:
        Every process must call.
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
    """Combine nested tensors of all processes element by element.

    Args:
        tensor: The nested tensors.
        reduction: "mean" or "sum"; "none" returns the tensors of this process.
        scale: What the result is multiplied by.

    Collective:
        Every process must call, with tensors of like shapes.
    """
    return accel_ops.reduce(tensor, _data_transport(), how=reduction, scale=scale)


def pad_across_processes(tensor: Any, dim: int = 0, pad_index: float = 0, pad_first: bool = False) -> Any:
    """Pad nested tensors to the length of the longest process's.

    Args:
        tensor: The nested tensors.
        dim: The dim along which lengths differ.
        pad_index: The value of what is added.
        pad_first: Whether it comes before what is there.

    Collective:
        Every process must call.
    """
    return accel_ops.pad_across_processes(tensor, _data_transport(), dim=dim, pad_index=pad_index, pad_first=pad_first)


def synchronize_rng_state(rng_type: str | None = None, generator: torch.Generator | None = None) -> None:
    """Set a random generator to the state that it has on the main process.

    Args:
        rng_type: Its kind, such as "torch"; "generator" for the given one.
        generator: The generator of this kind.

    Collective:
        Every process must call.
    """
    run = PartialState().run
    accel_ops.synchronize_rng_state(rng_type, generator, transport=run.transport, device=run.device)


def synchronize_rng_states(rng_types: Iterable[str], generator: torch.Generator | None = None) -> None:
    """Set random generators to the states that they have on the main process.

    Args:
        rng_types: Their kinds, such as "torch"; "generator" for the given one.
        generator: The generator of this kind.

    Collective:
        Every process must call.
    """
    run = PartialState().run
    accel_ops.synchronize_rng_states(rng_types, generator, transport=run.transport, device=run.device)


def set_seed(seed: int, device_specific: bool = False, deterministic: bool = False) -> None:
    """Seed Python, NumPy and torch.

    Args:
        seed: The seed.
        device_specific: Whether processes that have different samples get different seeds. Those that divide layers
            train on the same samples, and have to drop out alike.
        deterministic: Whether torch is told to use deterministic algorithms.
    """
    rank = 0
    if device_specific:
        run = PartialState().run
        rank = run.mesh.data_rank(run.topology.rank)
    accel_ops.set_seed(seed, device_specific, deterministic, rank=rank)
