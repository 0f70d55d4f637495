"""Gathers the results of a batch without the samples that were repeated to fill it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from accel_state import Epoch, Tail, Transport

from accel_ops.gather import gather_with_shapes
from accel_ops.packing import packed_object, unpacked_objects
from accel_ops.tree import all_tensors, recursively_apply


def gather_for_metrics(data: Any, transport: Transport, epoch: Epoch | None, *, use_gather_object: bool = False) -> Any:
    """What `gather` returns, less the samples that the loader behind `epoch` repeated to fill its last batch.

    What is no tensor goes through `gather_object`; a 0-d tensor counts once for each rank that had a real sample.

    Shape: (n, ...) on each -> (real samples of all ranks, ...) on all.
    Collective: every rank of the group must call.
    """
    tail = None if epoch is None else epoch.tail
    if transport.size == 1:
        return data
    if use_gather_object or not all_tensors(data):
        name = "gather_for_metrics"
        parts = unpacked_objects(name, transport.exchange(name, packed_object(data)))
        whole = [item for part in parts for item in (part if isinstance(part, list | tuple) else [part])]
        kept = None if tail is None else _kept(tail, [len(p) if isinstance(p, list | tuple) else None for p in parts])
        return whole if kept is None else [whole[index] for index in kept]
    gathered, shapes = gather_with_shapes(data, transport)
    if tail is None:
        return gathered
    found = tail
    sent = iter([[shape[0] if shape else None for shape in leaf] for leaf in shapes])
    return recursively_apply(lambda tensor: _trimmed(tensor, _kept(found, next(sent))), gathered)


def _trimmed(tensor: torch.Tensor, kept: list[int] | None) -> torch.Tensor:
    if kept is None:
        return tensor
    if kept == list(range(len(kept))):
        return tensor[: len(kept)]
    return tensor[torch.tensor(kept, device=tensor.device)]


def _kept(tail: Tail, sent: Sequence[int | None]) -> list[int] | None:
    """Which entries of a gathered leaf are real, of which each rank sent so many (None: a single value)."""
    if all(one is None for one in sent):
        return [one for one, real in enumerate(tail.real) if real]
    if list(sent) == list(tail.served):
        starts = accumulate(tail.served, initial=0)
        return [start + entry for start, real in zip(starts, tail.real, strict=False) for entry in range(real)]
    warnings.warn(
        f"gather_for_metrics: a leaf has {list(sent)} entries on the ranks where the batch has {list(tail.served)}"
        " samples, so those that are repeated cannot be told apart and all are returned; give one entry a sample, or"
        " use gather",
        stacklevel=4,
    )
    return None
