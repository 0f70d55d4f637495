"""Gathers the results of a batch without the samples that were repeated to fill it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from accel_state import Epoch, Tail, Transport

from accel_ops.flat import any_tensor
from accel_ops.gather import gather_leaves
from accel_ops.packing import packed_object, unpacked_objects


def gather_for_metrics(data: Any, transport: Transport, epoch: Epoch | None, *, use_gather_object: bool = False) -> Any:
    """What `gather` returns, less the samples that the loader behind `epoch` repeated to fill its last batch.

    Data without a tensor in it goes through `gather_object`; a 0-d tensor counts once for each rank that had a real
    sample.

    Shape: (n, ...) on each -> (real samples of all ranks, ...) on all.
    Collective: every rank of the group must call.
    """
    tail = None if epoch is None else epoch.tail
    if transport.size == 1:
        return data
    if use_gather_object or not any_tensor(data):
        name = "gather_for_metrics"
        parts = unpacked_objects(name, transport.exchange(name, packed_object(data)))
        whole = [item for part in parts for item in (part if isinstance(part, list | tuple) else [part])]
        return _trimmed(whole, tail, [len(one) if isinstance(one, list | tuple) else None for one in parts])
    found = gather_leaves(data, transport)
    return found.flat.rebuilt(
        _trimmed(leaf, tail, lengths) for leaf, lengths in zip(found.leaves, found.lengths, strict=True)
    )


def _trimmed(leaf: Any, tail: Tail | None, sent: Sequence[int | None]) -> Any:
    """A gathered leaf without its repeated entries, of which each rank sent so many (None: a single value)."""
    kept = None if tail is None or leaf is None else _kept(tail, sent)
    if kept is None:
        return leaf
    if not isinstance(leaf, torch.Tensor):
        return type(leaf)(leaf[index] for index in kept)
    if kept == list(range(len(kept))):
        return leaf[: len(kept)]
    return leaf[torch.tensor(kept, device=leaf.device)]


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
