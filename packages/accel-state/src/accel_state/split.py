"""Cuts a collection into one contiguous piece a process."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any


def bounds(length: int, rank: int, size: int) -> tuple[int, int]:
    """First and past-last position of `rank`'s piece; the first `length % size` ranks get one more."""
    base, more = divmod(length, size)
    start = rank * base + min(rank, more)
    return start, start + base + (rank < more)


def split(inputs: Any, rank: int, size: int, *, padding: bool = False) -> Any:
    """`rank`'s contiguous piece of a sequence, tensor, Dataset or mapping of them; padding repeats the last item.

    Raises: ValueError for a mapping whose values differ in length; TypeError for what has no pieces.
    """
    if size == 1:
        return inputs
    if isinstance(inputs, Mapping):
        lengths = {key: len(value) for key, value in inputs.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"a mapping can be split when its values have one length, found {lengths}")
        pieces = {key: split(value, rank, size, padding=padding) for key, value in inputs.items()}
        if not isinstance(inputs, MutableMapping):
            return type(inputs)(pieces)  # type: ignore[call-arg]
        # a copy keeps what a constructor would not know: the factory of a defaultdict
        twin = copy.copy(inputs)
        twin.update(pieces)
        return twin
    if not hasattr(inputs, "__len__") or not hasattr(inputs, "__getitem__"):
        raise TypeError(f"a {type(inputs).__name__} has no pieces; pass a list, tuple, tensor, mapping or Dataset")
    start, stop = bounds(len(inputs), rank, size)
    missing = -(-len(inputs) // size) - (stop - start) if padding and len(inputs) else 0
    last = stop - 1  # also of all, for a rank with an empty piece: such ranks come last
    if hasattr(inputs, "select") and not _is_tensor(inputs):
        # a Hugging Face Dataset: a slice of it would be a dict of columns
        return inputs.select([*range(start, stop), *[last] * missing])
    if not missing:
        return inputs[start:stop]
    if isinstance(inputs, list | tuple | str | bytes):
        filling: Any = inputs[last : last + 1] * missing
        return inputs[start:stop] + filling
    if isinstance(inputs, Sequence):
        return [*inputs[start:stop], *[inputs[last]] * missing]
    # tensors and numpy arrays, for which + would add numbers
    return inputs[[*range(start, stop), *[last] * missing]]


def _is_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)
