"""Gathers the results of a batch without the samples that were repeated to fill it."""

from __future__ import annotations

import warnings
from itertools import accumulate
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
    tail, rank = epoch.tail, transport.rank
    if gather_objects:
        kept = _kept(tail, rank, len(data) if isinstance(data, list | tuple) else None)
        return gathered if kept is None else [gathered[index] for index in kept]
    sent = iter(_lengths(data))
    return recursively_apply(lambda tensor: _trimmed(tensor, _kept(tail, rank, next(sent))), gathered)


def _trimmed(tensor: torch.Tensor, kept: list[int] | None) -> torch.Tensor:
    if kept is None:
        return tensor
    if kept == list(range(len(kept))):
        return tensor[: len(kept)]
    return tensor[torch.tensor(kept, device=tensor.device)]


def _lengths(data: Any) -> list[int | None]:
    found: list[int | None] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.append(len(tensor) if tensor.ndim else None)
        return tensor

    recursively_apply(note, data)
    return found


def _kept(tail: Tail, rank: int, sent: int | None) -> list[int] | None:
    """Which entries of a gathered leaf are real, when this rank sent `sent` of them (None: a single value)."""
    if sent is None:
        return [one for one, real in enumerate(tail.real) if real]
    if sent == tail.served[rank]:
        starts = accumulate(tail.served, initial=0)
        return [start + entry for start, real in zip(starts, tail.real, strict=False) for entry in range(real)]
    warnings.warn(
        f"gather_for_metrics: a leaf has {sent} entries where the batch has {tail.served[rank]} samples, so those that"
        " are repeated cannot be told apart and all are returned; give one entry a sample, or use gather",
        stacklevel=4,
    )
    return None
