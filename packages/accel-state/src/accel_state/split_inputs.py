"""Cut a collection into one contiguous piece for each process."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any


def bounds(length: int, rank: int, size: int) -> tuple[int, int]:
    """Return the first and the past-last index of the piece of a rank.

    Args:
        length: Items of the collection.
        rank: The rank.
        size: Number of ranks; the first `length % size` of them get an item more.
    """
    base, more = divmod(length, size)
    start = rank * base + min(rank, more)
    return start, start + base + (rank < more)


def split(inputs: Any, rank: int, size: int, *, padding: bool = False) -> Any:
    """Return the contiguous piece of a rank.

    A torch Dataset gives a Subset; a dataset with `select`, as Hugging Face's, gives its selection. No item is read.

    Args:
        inputs: A sequence, tensor, Dataset, or mapping of them.
        rank: The rank.
        size: Number of ranks.
        padding: Whether to repeat the last item of all until all pieces have one length.

    Raises:
        ValueError: For a mapping whose values differ in length.
        TypeError: For a value that has no pieces.
    """
    if size == 1:
        return inputs
    if isinstance(inputs, Mapping):
        lengths = {key: len(value) for key, value in inputs.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"a mapping can be split when its values have one length, found {lengths}")
        pieces = {key: split(value, rank, size, padding=padding) for key, value in inputs.items()}
        if not isinstance(inputs, MutableMapping):
            return type(inputs)(pieces)  # type: ignore[call-arg] # of a mapping's constructor nothing is declared
        # a copy keeps what a constructor would not know: the factory of a defaultdict
        twin = copy.copy(inputs)
        twin.update(pieces)
        return twin
    kind = _torch_kind(inputs)
    selects = kind == "" and hasattr(inputs, "select")
    has_pieces = hasattr(inputs, "__len__") and (selects or hasattr(inputs, "__getitem__"))
    if kind == "stream" or not has_pieces:
        raise TypeError(f"a {type(inputs).__name__} has no pieces; pass a list, tuple, tensor, mapping or Dataset")
    start, stop = bounds(len(inputs), rank, size)
    missing = -(-len(inputs) // size) - (stop - start) if padding and len(inputs) else 0
    last = len(inputs) - 1
    positions: Sequence[int] = [*range(start, stop), *[last] * missing] if missing else range(start, stop)
    if kind == "dataset":
        return sys.modules["torch.utils.data"].Subset(inputs, positions)
    if selects:
        # a Hugging Face Dataset: a slice of it would be a dict of columns
        return inputs.select(positions)
    if not missing:
        return inputs[start:stop]
    if isinstance(inputs, list | tuple | str | bytes):
        filling: Any = inputs[last : last + 1] * missing
        return inputs[start:stop] + filling
    if isinstance(inputs, Sequence):
        return [*inputs[start:stop], *[inputs[last]] * missing]
    # tensors and numpy arrays, for which + would add numbers
    return inputs[positions]


def _torch_kind(value: object) -> str:
    """Return the class of torch that the value has, if torch is imported."""
    torch, data = sys.modules.get("torch"), sys.modules.get("torch.utils.data")
    if torch is not None and isinstance(value, torch.Tensor):
        return "tensor"
    if data is not None and isinstance(value, data.Dataset):
        return "stream" if isinstance(value, data.IterableDataset) else "dataset"
    return ""
