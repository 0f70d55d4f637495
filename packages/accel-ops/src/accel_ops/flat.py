"""Flatten nested data into a row of leaves, and rebuild it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, final

import torch

from accel_ops.tree import honor_type, is_namedtuple, same_mapping


@final
class Flat:
    """The leaves of nested lists, tuples, named tuples and mappings, in the order of the containers.

    Args:
        data: The nested data.
        operation: Name of the operation that is to send the data, for error messages.
        objects: Whether a leaf may be any object: then a list or plain tuple without a tensor in it is one leaf.
            Otherwise `check` raises if a leaf is no tensor.
    """

    def __init__(self, data: Any, operation: str, *, objects: bool = False) -> None:
        self.data = data
        self._objects = objects
        self.paths: list[str] = []
        self.leaves: list[Any] = []
        #: why each leaf cannot be sent as its bytes; None if it can
        self.kinds: list[str | None] = []
        #: why the data cannot be sent; raised only when all ranks know what the others have
        self.refusal: str | None = None
        self._walk("", data, operation)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The leaves that are tensors."""
        return [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]

    @property
    def objects(self) -> list[Any]:
        """The leaves that are no tensors."""
        return [leaf for leaf in self.leaves if not isinstance(leaf, torch.Tensor)]

    def kind(self, leaf: Any) -> str:
        """Return a name for a leaf that is no tensor: "object" if `objects` is set, and otherwise its type."""
        return "object" if self._objects else type(leaf).__name__

    def named(self) -> Iterator[tuple[str, Any]]:
        """Return an iterator over the leaves with their paths."""
        return zip(self.paths, self.leaves, strict=True)

    def check(self) -> None:
        """Raise if a leaf cannot be sent.

        Raises:
            TypeError: The leaf is named with its path.
        """
        if self.refusal is not None:
            raise TypeError(self.refusal)

    def rebuilt(self, leaves: Iterable[Any]) -> Any:
        """Return the data with other leaves.

        Args:
            leaves: One for each leaf of the data, in the same order.
        """
        return self._rebuilt(self.data, iter(leaves))

    def _walk(self, path: str, value: Any, operation: str) -> None:
        kind: str | None = None
        if isinstance(value, torch.Tensor):
            if value.is_conj() or value.is_neg():
                value = value.resolve_conj().resolve_neg()
            kind = unusual(value)
            if kind is not None and self.refusal is None:
                self.refusal = (
                    f"{operation} cannot send the {kind} tensor at data{path};"
                    " make it dense and strided first (to_dense, dequantize, full_tensor), or send it as an object:"
                    " gather_object"
                )
        elif isinstance(value, tuple | list) and not self._is_object(value):
            for index, item in enumerate(value):
                self._walk(f"{path}[{index}]", item, operation)
            return
        elif isinstance(value, Mapping):
            for key, item in value.items():
                self._walk(f"{path}[{key!r}]", item, operation)
            return
        elif not self._objects and self.refusal is None:
            self.refusal = (
                f"{operation} takes tensors in lists, tuples, named tuples and mappings;"
                f" found a {type(value).__name__} at data{path}"
            )
        self.paths.append(path)
        self.leaves.append(value)
        self.kinds.append(kind)

    def _rebuilt(self, value: Any, leaves: Iterator[Any]) -> Any:
        if isinstance(value, torch.Tensor):
            return next(leaves)
        if isinstance(value, tuple | list) and not self._is_object(value):
            return honor_type(value, [self._rebuilt(item, leaves) for item in value])
        if isinstance(value, Mapping):
            return same_mapping(value, {key: self._rebuilt(item, leaves) for key, item in value.items()})
        return next(leaves)

    def _is_object(self, value: Any) -> bool:
        return self._objects and not is_namedtuple(value) and not any_tensor(value)


def is_sharded(value: object) -> bool:
    """Return whether a value is a tensor of which each rank holds a part (a DTensor)."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def any_tensor(value: Any) -> bool:
    """Return whether nested data has a tensor in it."""
    if isinstance(value, torch.Tensor):
        return True
    if isinstance(value, tuple | list):
        return any(map(any_tensor, value))
    return isinstance(value, Mapping) and any(map(any_tensor, value.values()))


def unusual(tensor: torch.Tensor) -> str | None:
    """Return the kind of a tensor that cannot be sent as its bytes, such as "sparse", or None."""
    if tensor.is_nested:
        return "nested"
    if tensor.layout != torch.strided:
        return "sparse"
    if tensor.is_quantized:
        return "quantized"
    if type(tensor) is not torch.Tensor and is_sharded(tensor):  # its values are not where its bytes seem to be
        return "sharded"
    return "meta" if tensor.is_meta else None
