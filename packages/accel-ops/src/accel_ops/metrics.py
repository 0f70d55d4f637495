"""Gathers the results of a batch without the samples that were repeated to fill it."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from accel_state import Epoch, Tail, Transport

from accel_ops.gather import gather, gather_object
from accel_ops.tree import all_tensors, recursively_apply


def gather_for_metrics(data: Any, transport: Transport, epoch: Epoch | None, *, use_gather_object: bool = False) -> Any:
    """What `gather` returns, less the samples that the loader behind `epoch` repeated to fill its last batch.

    What is no tensor goes through `gather_object`; a 0-d tensor counts once for each rank that had a real sample.

    Shape: (n, ...) on each -> (real samples of all ranks, ...) on all.
    Collective: every rank of the group must call.
    """
    gather_objects = use_gather_object or not all_tensors(data)
    gathered = gather_object(data, transport) if gather_objects else gather(data, transport)
    if epoch is None or epoch.tail is None or transport.size == 1:
        return gathered
    tail = epoch.tail
    if gather_objects:
        return gathered[: _keep(tail, len(data) if isinstance(data, list | tuple) else None)]
    sent = iter(_lengths(data))
    return recursively_apply(lambda tensor: tensor[: _keep(tail, next(sent))], gathered)


def _lengths(data: Any) -> list[int | None]:
    found: list[int | None] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.append(len(tensor) if tensor.ndim else None)
        return tensor

    recursively_apply(note, data)
    return found


def _keep(tail: Tail, sent: int | None) -> int | None:
    """How much of a gathered leaf is real, when this rank sent `sent` entries of it (None: a single value)."""
    if sent is None:
        return tail.ranks
    if sent == tail.rows:
        return tail.real
    warnings.warn(
        f"gather_for_metrics: a leaf has {sent} entries where the batch has {tail.rows} samples, so the repeated ones"
        " cannot be told apart and all are returned; give one entry a sample, or use gather",
        stacklevel=4,
    )
    return None
