"""Every rank's tensors and objects, on every rank."""

from __future__ import annotations

from typing import Any

import torch
from accel_state import Transport

from accel_ops.agree import Leaf, ShapeMismatch, Signature, exchange_signatures, table
from accel_ops.tree import recursively_apply, require_tensors


def gather(data: Any, transport: Transport) -> Any:
    """Nested tensors of all ranks, joined along dim 0 in rank order; lengths along dim 0 may differ.

    Shape: (n_r, ...) on rank r -> (sum of n_r, ...) on all; () on each -> (ranks,) on all.
    Raises: TypeError for a leaf that is no tensor; ShapeMismatch when other dims, dtypes or structures differ.
    Collective: every rank of the group must call.
    """
    everyone = exchange_signatures("gather", data, transport) if transport.size > 1 else None
    if everyone is not None:
        _require_only_lengths_differ(everyone)
    require_tensors("gather", data)
    if transport.size == 1:
        return recursively_apply(lambda tensor: tensor, data)
    if everyone is None:
        return recursively_apply(transport.all_gather, data)
    columns = zip(*everyone, strict=True)

    def gather_leaf(tensor: torch.Tensor) -> torch.Tensor:
        lengths = [leaf.shape[0] for leaf in next(columns) if leaf.shape]
        return _all_gather_ragged(tensor, lengths, transport) if tensor.ndim else transport.all_gather(tensor)

    return recursively_apply(gather_leaf, data)


def gather_object(data: Any, transport: Transport) -> Any:
    """The lists of all ranks, joined in rank order; what is no list becomes one item.

    Collective: every rank of the group must call.
    """
    if transport.size == 1:
        return data
    parts = transport.all_gather_objects(data)
    return [item for part in parts for item in (part if isinstance(part, list | tuple) else [part])]


def _all_gather_ragged(tensor: torch.Tensor, lengths: list[int], transport: Transport) -> torch.Tensor:
    longest = max(lengths)
    padded = tensor.new_zeros((longest, *tensor.shape[1:]))
    padded[: len(tensor)] = tensor.detach()
    gathered = transport.all_gather(padded)
    return torch.cat([gathered[rank * longest : rank * longest + length] for rank, length in enumerate(lengths)])


def _require_only_lengths_differ(everyone: list[Signature]) -> None:
    kinds = {tuple((leaf.path, leaf.dtype, leaf.device, _dims_after_first(leaf)) for leaf in one) for one in everyone}
    if len(kinds) > 1:
        alike = {tuple((leaf.path, leaf.dtype, leaf.device, len(leaf.shape)) for leaf in one) for one in everyone}
        advice = (
            "pad the dim that differs first: accelerator.pad_across_processes(data, dim=1)"
            if len(alike) == 1
            else "make them alike on every rank, or send them as objects: gather_object"
        )
        raise ShapeMismatch(
            "gather needs the same structure, dtypes and dims on all ranks (only dim 0 may differ), found"
            f"{table(everyone)}\n{advice}"
        )


def _dims_after_first(leaf: Leaf) -> tuple[int, ...] | None:
    return leaf.shape[1:] if leaf.shape else None
