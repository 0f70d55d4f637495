"""Gather the results of a batch without the samples that were repeated to fill it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from accel_comm import Transport
from accel_state import BatchPadding, LoaderPass

from accel_ops.flat import any_tensor
from accel_ops.gather import gather_leaves, items_of
from accel_ops.packing import exchange_objects
from accel_ops.tree import recursively_apply
from accel_ops.whole import whole


def gather_for_metrics(
    data: Any, transport: Transport, loader_pass: LoaderPass | None, *, use_gather_object: bool = False
) -> Any:
    """Gather results without the samples that were repeated to fill the last batch.

    If the last batch is short, a leaf with as many entries as a full batch was repeated by the script, as in
    `loss.repeat(batch_size)`. It is cut to the real samples, also on one process. Data without a tensor in it is
    gathered as by `gather_object`. A 0-d tensor counts once for each rank that had a real sample. If the entries of a
    leaf cannot be assigned to samples, all are returned, with a warning.

    Args:
        data: Results of this rank, with an entry for each of its samples along dim 0.
        transport: Transport of the ranks that take part.
        loader_pass: The pass over the loader that served the batch, or None to keep all entries.
        use_gather_object: Gather `data` as objects even if it has tensors.

    Shape:
        (n, ...) on each rank -> (real samples of all ranks, ...) on all.

    Raises:
        ShapeMismatch: Dims other than dim 0, dtypes or structures differ between ranks.
        TypeError: A tensor cannot be sent, such as a sparse one, or an object cannot be pickled.

    Collective:
        Every rank of the group must call.
    """
    tail, rows = (None, None) if loader_pass is None else (loader_pass.tail, loader_pass.rows)
    if transport.size == 1:
        data = whole(data, "gather_for_metrics", transport)
        if tail is None or rows is None or len(tail.real) > 1 or tail.total >= rows:
            return data
        return _cut_repeated(data, tail.total, rows, objects=use_gather_object)
    if use_gather_object or not any_tensor(data):
        data = whole(data, "gather_for_metrics", transport)
        parts = exchange_objects("gather_for_metrics", data, transport)
        lengths = [len(part) if isinstance(part, list | tuple) else None for part in parts]
        return _trimmed(items_of(parts), tail, rows, lengths)
    gathered = gather_leaves(data, transport)
    return gathered.flat.rebuilt(
        _trimmed(leaf, tail, rows, lengths) for leaf, lengths in zip(gathered.leaves, gathered.lengths, strict=True)
    )


def _cut_repeated(data: Any, real: int, rows: int, *, objects: bool) -> Any:
    """Cut the data of a single process to its real samples if it was repeated up to a full batch."""
    if objects or not any_tensor(data):
        return data[:real] if isinstance(data, list | tuple) and len(data) == rows else data
    return recursively_apply(lambda leaf: leaf[:real] if leaf.ndim and len(leaf) == rows else leaf, data)


def _trimmed(leaf: Any, tail: BatchPadding | None, rows: int | None, lengths: Sequence[int | None]) -> Any:
    """Return a gathered leaf without its repeated entries."""
    kept = None if tail is None or leaf is None else _kept(tail, rows, lengths)
    if kept is None:
        return leaf
    if not isinstance(leaf, torch.Tensor):
        return type(leaf)(leaf[index] for index in kept)
    if kept == list(range(len(kept))):
        return leaf[: len(kept)]
    return leaf[torch.tensor(kept, device=leaf.device)]


def _kept(tail: BatchPadding, rows: int | None, lengths: Sequence[int | None]) -> list[int] | None:
    """Return the positions of real entries in a gathered leaf, or None if nobody knows them."""
    if all(length is None for length in lengths):
        return [rank for rank, real in enumerate(tail.real) if real]
    if list(lengths) == list(tail.served) or set(lengths) == {rows}:
        starts = accumulate((length or 0 for length in lengths), initial=0)
        return [start + entry for start, real in zip(starts, tail.real, strict=False) for entry in range(real)]
    warnings.warn(
        f"gather_for_metrics: a leaf has {list(lengths)} entries on the ranks where the batch has {list(tail.served)}"
        " samples, so those that are repeated cannot be told apart and all are returned; give one entry a sample, or"
        " use gather",
        stacklevel=4,
    )
    return None
