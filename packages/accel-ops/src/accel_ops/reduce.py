"""Sums, means and extremes of nested tensors over all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from accel_state import Reduction, Transport

from accel_ops.agree import agree, require_alike
from accel_ops.flat import Flat, unusual
from accel_ops.packing import from_bytes, in_groups, to_bytes, travels_small

_COMBINED: dict[Reduction, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda stack: stack.sum(0, dtype=stack.dtype),
    "mean": lambda stack: stack.sum(0, dtype=stack.dtype) / len(stack),
    "max": lambda stack: stack.amax(0),
    "min": lambda stack: stack.amin(0),
}
REDUCTIONS = tuple(_COMBINED)
#: dtypes that every reduction leaves as they are
_PLAIN = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16})


def reduce(data: Any, transport: Transport, *, how: Reduction = "mean", scale: float = 1.0) -> Any:
    """Nested tensors combined element by element over all ranks, then multiplied by `scale`.

    Shape: unchanged; a mean of whole numbers is a float.
    Raises: ValueError for an unknown reduction; TypeError for a leaf that is no tensor; ShapeMismatch when shapes or
    dtypes differ between ranks.
    Collective: every rank of the group must call.
    """
    if how not in _COMBINED:
        raise ValueError(f"reduction={how!r}: expected one of {', '.join(REDUCTIONS)}")
    if transport.size == 1 and isinstance(data, torch.Tensor) and data.dtype in _PLAIN and unusual(data) is None:
        alone = transport.all_reduce(data, how)
        return alone if scale == 1.0 else alone * scale
    operation = f"reduce ({how})"
    flat = Flat(data, operation)
    flat.refusal = flat.refusal or _not_to_be_combined(flat, how)
    if how == "mean":
        flat.leaves = [_as_float(leaf) for leaf in flat.leaves]  # whole numbers of few bits would overflow
    dtypes = [leaf.dtype if isinstance(leaf, torch.Tensor) else None for leaf in flat.leaves]
    flat.leaves = [_widened(leaf) for leaf in flat.leaves]
    if transport.size == 1:
        flat.check()
        found = [transport.all_reduce(tensor, how) for tensor in flat.leaves]
    else:
        tensors = flat.tensors
        small = flat.refusal is None and travels_small(tensors)
        agreed = agree(operation, flat, transport, to_bytes(tensors) if small else b"")
        require_alike(operation, agreed, advice="give every rank the same, or use gather")
        flat.check()
        if small:
            found = _of_letters(tensors, agreed.sent, how)
        else:
            found = in_groups(tensors, _flattened, lambda whole: _all_reduced(whole, transport, how))
    found = [_narrowed(tensor, dtype) for tensor, dtype in zip(found, dtypes, strict=True)]
    return flat.rebuilt(found if scale == 1.0 else (tensor * scale for tensor in found))


def _of_letters(tensors: Sequence[torch.Tensor], sent: Sequence[bytes], how: Reduction) -> list[torch.Tensor]:
    """Of numbers that all ranks have sent, combined in the order of the ranks."""
    start, found = 0, []
    for tensor in tensors:
        end = start + tensor.nbytes
        stack = from_bytes(b"".join(one[start:end] for one in sent), (len(sent), *tensor.shape), tensor.dtype)
        found.append(_COMBINED[how](stack))
        start = end
    return found


def _flattened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1)


def _all_reduced(tensor: torch.Tensor, transport: Transport, how: Reduction) -> torch.Tensor:
    """Collective: every rank of the group must call, with tensors of equal shapes and dtypes."""
    found = transport.all_reduce(tensor, how)
    if how in ("max", "min") and tensor.is_floating_point() and tensor.device.type == "cpu":
        # gloo compares as C does, and loses what is not a number
        lost = transport.all_reduce(torch.isnan(tensor).to(torch.uint8), "max").bool()
        found.masked_fill_(lost, torch.nan)
    return found


#: dtypes that torch or gloo cannot combine, and one that has the same low bits
_WIDER = {torch.int16: torch.int32, torch.uint16: torch.int32, torch.uint32: torch.int64}


def _widened(leaf: Any) -> Any:
    wide = _WIDER.get(leaf.dtype) if isinstance(leaf, torch.Tensor) else None
    return leaf if wide is None or unusual(leaf) else leaf.to(wide)


def _narrowed(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    return tensor.to(dtype) if dtype in _WIDER else tensor


def _as_float(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor) or leaf.is_floating_point() or leaf.is_complex() or unusual(leaf):
        return leaf
    return leaf.to(torch.get_default_dtype())


def _not_to_be_combined(flat: Flat, how: Reduction) -> str | None:
    for path, leaf in flat.named():
        if not isinstance(leaf, torch.Tensor):
            continue
        if how in ("max", "min") and leaf.is_complex():
            return f"reduce ({how}) needs numbers that have an order; found {leaf.dtype} at data{path}"
        if (leaf.is_floating_point() and leaf.itemsize == 1) or leaf.dtype in (torch.uint64, torch.complex32):
            return f"reduce ({how}) cannot combine the {leaf.dtype} at data{path}; convert it first: x.float()"
    return None
