"""Compute sums, means and extremes of nested tensors over all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from accel_comm import Reduction, Transport
from accel_comm.transports import longest_of

from accel_ops.agree import agree_alike
from accel_ops.flat import Flat, unusual
from accel_ops.packing import from_bytes, in_groups, to_bytes, travels_small
from accel_ops.whole import flat_whole

_COMBINED: dict[Reduction, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda stack: stack.sum(0, dtype=stack.dtype),
    "mean": lambda stack: stack.sum(0, dtype=stack.dtype),
    "max": lambda stack: stack.amax(0),
    "min": lambda stack: stack.amin(0),
}
REDUCTIONS = tuple(_COMBINED)
#: dtypes that every reduction leaves as they are
_PLAIN = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16})


def reduce(data: Any, transport: Transport, *, how: Reduction = "mean", scale: float = 1.0) -> Any:
    """Combine nested tensors over all ranks, element by element.

    Args:
        data: Nested tensors, with the same structure, shapes and dtypes on every rank.
        transport: Transport of the ranks that take part.
        how: "sum", "mean", "max" or "min".
        scale: Factor for the results.

    Returns:
        The combined tensors in the containers of `data`. A sharded tensor (DTensor) becomes a whole one.

    Shape:
        Unchanged; a mean of integers is a float.

    Raises:
        ValueError: The reduction is unknown.
        TypeError: A leaf is no tensor, or a tensor that cannot be combined, such as a sparse one.
        ShapeMismatch: Shapes or dtypes differ between ranks.

    Collective:
        Every rank of the group must call.
    """
    if how not in _COMBINED:
        raise ValueError(f"reduction={how!r}: expected one of {', '.join(REDUCTIONS)}")
    if transport.size == 1 and isinstance(data, torch.Tensor) and data.dtype in _PLAIN and unusual(data) is None:
        alone = transport.all_reduce(data, how)
        return alone if scale == 1.0 else alone * scale
    operation = f"reduce ({how})" if scale == 1.0 else f"reduce ({how}, scale {scale})"
    flat = flat_whole(data, operation, transport)
    flat.refusal = flat.refusal or _not_to_be_combined(flat, how)
    # what ranks agree on is what they were given; integers of few bits would overflow in a mean
    leaves = [_as_float(leaf) for leaf in flat.leaves] if how == "mean" else flat.leaves
    given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    tensors = [_widened(tensor, how) for tensor in given]
    if transport.size == 1:
        flat.check()
        results = [transport.all_reduce(tensor, how) for tensor in tensors]
    else:
        small = flat.refusal is None and travels_small(tensors, transport.inline_bytes)
        parts = agree_alike(
            operation,
            flat,
            transport,
            to_bytes(tensors) if small else b"",
            (lambda sent: to_bytes(_combined(tensors, sent, how))) if small else longest_of,
            advice="give every rank the same, or use gather",
        )
        flat.check()
        if small:
            results = _combined(tensors, parts, how)
            results = [tensor / transport.size for tensor in results] if how == "mean" else results
        else:
            results = in_groups(tensors, lambda whole: _all_reduced(whole, transport, how))
    results = [result.to(tensor.dtype) for result, tensor in zip(results, given, strict=True)]
    return flat.rebuilt(results if scale == 1.0 else (result * scale for result in results))


def _combined(tensors: Sequence[torch.Tensor], sent: Sequence[bytes], how: Reduction) -> list[torch.Tensor]:
    """Return the tensors of all ranks, combined in rank order, and for a mean their sum."""
    start, combined = 0, []
    for tensor in tensors:
        end = start + tensor.nbytes
        stack = from_bytes(b"".join(content[start:end] for content in sent), (len(sent), *tensor.shape), tensor.dtype)
        combined.append(_COMBINED[how](stack))
        start = end
    return combined


def _all_reduced(tensor: torch.Tensor, transport: Transport, how: Reduction) -> torch.Tensor:
    """Combine one tensor, with equal shapes and dtypes on every rank (collective)."""
    result = transport.all_reduce(tensor, how)
    if how in ("max", "min") and tensor.is_floating_point():
        # gloo compares as C does, and NCCL as fmax: both lose NaN
        lost = transport.all_reduce(torch.isnan(tensor).to(torch.uint8), "max").bool()
        result.masked_fill_(lost, torch.nan)
    return result


#: dtypes that torch or gloo cannot combine, and a dtype that has the same low bits
_WIDER = {torch.int16: torch.int32, torch.uint16: torch.int32, torch.uint32: torch.int64}
#: and a dtype in whose range a mean fits, but not its sum
_WIDER_FOR_A_MEAN = {**_WIDER, torch.float16: torch.float32}


def _widened(tensor: torch.Tensor, how: Reduction) -> torch.Tensor:
    wider = _WIDER_FOR_A_MEAN if how == "mean" else _WIDER
    return tensor if unusual(tensor) else tensor.to(wider.get(tensor.dtype, tensor.dtype))


def _as_float(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor) or leaf.is_floating_point() or leaf.is_complex() or unusual(leaf):
        return leaf
    return leaf.to(torch.get_default_dtype())


def _not_to_be_combined(flat: Flat, how: Reduction) -> str | None:
    if all([isinstance(leaf, torch.Tensor) and leaf.dtype in _PLAIN for leaf in flat.leaves]):
        return None
    for path, leaf in flat.named():
        if not isinstance(leaf, torch.Tensor):
            continue
        if how in ("max", "min") and leaf.is_complex():
            return f"reduce ({how}) needs numbers that have an order; found {leaf.dtype} at data{path}"
        if (leaf.is_floating_point() and leaf.itemsize == 1) or leaf.dtype in (torch.uint64, torch.complex32):
            return f"reduce ({how}) cannot combine the {leaf.dtype} at data{path}; convert it first: x.float()"
    return None
