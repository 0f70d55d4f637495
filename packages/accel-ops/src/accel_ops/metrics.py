"""Gathers the results of a batch without what was repeated to fill it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from accel_state import BatchPadding, LoaderPass, Transport

from accel_ops.flat import any_tensor
from accel_ops.gather import gather_leaves
from accel_ops.packing import packed_object, unpacked_objects
from accel_ops.tree import recursively_apply


def gather_for_metrics(
    data: Any, transport: Transport, epoch: LoaderPass | None, *, use_gather_object: bool = False
) -> Any:
    """What `gather` returns, less what was repeated to fill the last batch of the loader behind `epoch`.

    What has as many entries as a full batch, where the last one is short, was repeated by the script, as in
    `loss.repeat(batch_size)`, and is cut to the real samples, on one process too. Data without a tensor in it goes
    through `gather_object`; a 0-d tensor counts once for each rank that had a real sample.

    Shape: (n, ...) on each -> (real samples of all ranks, ...) on all.
    Collective: every rank of the group must call.
    """
    tail, rows = (None, None) if epoch is None else (epoch.tail, epoch.rows)
    if transport.size == 1:
        if tail is None or rows is None or len(tail.real) > 1 or tail.total >= rows:
            return data
        return _alone(data, tail.total, rows, objects=use_gather_object)
    if use_gather_object or not any_tensor(data):
        name = "gather_for_metrics"
        parts = unpacked_objects(name, transport.exchange(name, packed_object(data)))
        whole = [item for part in parts for item in (part if isinstance(part, list | tuple) else [part])]
        return _trimmed(whole, tail, rows, [len(one) if isinstance(one, list | tuple) else None for one in parts])
    found = gather_leaves(data, transport)
    return found.flat.rebuilt(
        _trimmed(leaf, tail, rows, lengths) for leaf, lengths in zip(found.leaves, found.lengths, strict=True)
    )


def _alone(data: Any, real: int, rows: int, *, objects: bool) -> Any:
    """The data of the one process there is, cut where it was repeated up to a full batch."""
    if objects or not any_tensor(data):
        return data[:real] if isinstance(data, list | tuple) and len(data) == rows else data
    return recursively_apply(lambda leaf: leaf[:real] if leaf.ndim and len(leaf) == rows else leaf, data)


def _trimmed(leaf: Any, tail: BatchPadding | None, rows: int | None, sent: Sequence[int | None]) -> Any:
    """A gathered leaf without its repeated entries, of which each rank sent so many (None: a single value)."""
    kept = None if tail is None or leaf is None else _kept(tail, rows, sent)
    if kept is None:
        return leaf
    if not isinstance(leaf, torch.Tensor):
        return type(leaf)(leaf[index] for index in kept)
    if kept == list(range(len(kept))):
        return leaf[: len(kept)]
    return leaf[torch.tensor(kept, device=leaf.device)]


def _kept(tail: BatchPadding, rows: int | None, sent: Sequence[int | None]) -> list[int] | None:
    """Which entries of a gathered leaf are real, of which each rank sent so many (None: a single value)."""
    if all(one is None for one in sent):
        return [one for one, real in enumerate(tail.real) if real]
    if list(sent) == list(tail.served) or set(sent) == {rows}:
        starts = accumulate((one or 0 for one in sent), initial=0)
        return [start + entry for start, real in zip(starts, tail.real, strict=False) for entry in range(real)]
    warnings.warn(
        f"gather_for_metrics: a leaf has {list(sent)} entries on the ranks where the batch has {list(tail.served)}"
        " samples, so those that are repeated cannot be told apart and all are returned; give one entry a sample, or"
        " use gather",
        stacklevel=4,
    )
    return None
