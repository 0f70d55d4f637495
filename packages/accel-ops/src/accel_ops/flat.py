"""Nested data as a row of leaves, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, final

import torch

from accel_ops.tree import honor_type, is_namedtuple, same_mapping


@final
class Flat:
    """The leaves of nested lists, tuples, named tuples and mappings, in the order of the containers.

    With `objects` a list or plain tuple without a tensor in it is one leaf, and everything else may be one; otherwise
    every leaf has to be a tensor that can travel.

    Raises: TypeError that names the first leaf that cannot.
    """

    def __init__(self, data: Any, operation: str, *, objects: bool = False) -> None:
        self._data = data
        self._objects = objects
        self.paths: list[str] = []
        self.leaves: list[Any] = []
        #: what keeps each leaf from being sent as its numbers
        self.kinds: list[str | None] = []
        #: why it cannot travel; said only when all ranks know what the others have
        self.refusal: str | None = None
        self._walk("", data, operation)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The leaves that are tensors."""
        return [one for one in self.leaves if isinstance(one, torch.Tensor)]

    def kind(self, leaf: Any) -> str:
        """What a leaf is that is no tensor: any object where objects may come, and otherwise its type."""
        return "object" if self._objects else type(leaf).__name__

    def named(self) -> Iterator[tuple[str, Any]]:
        """The leaves with their paths."""
        return zip(self.paths, self.leaves, strict=True)

    def check(self) -> None:
        """Raises: TypeError for a leaf that cannot travel."""
        if self.refusal is not None:
            raise TypeError(self.refusal)

    def rebuilt(self, leaves: Iterable[Any]) -> Any:
        """The data with other leaves in the places of these."""
        return self._rebuilt(self._data, iter(leaves))

    def _walk(self, path: str, value: Any, operation: str) -> None:
        kind: str | None = None
        if isinstance(value, torch.Tensor):
            if value.is_conj() or value.is_neg():
                value = value.resolve_conj().resolve_neg()
            kind = unusual(value)
            if kind is not None and self.refusal is None:
                self.refusal = (
                    f"{operation} cannot send the {kind} tensor at data{path};"
                    " make it dense and strided first (to_dense, dequantize), or send it as an object: gather_object"
                )
        elif isinstance(value, tuple | list) and not self._is_one(value):
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

    def _is_one(self, value: Any) -> bool:
        return self._objects and not is_namedtuple(value) and not any_tensor(value)

    def _rebuilt(self, value: Any, leaves: Iterator[Any]) -> Any:
        if isinstance(value, torch.Tensor):
            return next(leaves)
        if isinstance(value, tuple | list) and not self._is_one(value):
            return honor_type(value, [self._rebuilt(item, leaves) for item in value])
        if isinstance(value, Mapping):
            return same_mapping(value, {key: self._rebuilt(item, leaves) for key, item in value.items()})
        return next(leaves)


def any_tensor(value: Any) -> bool:
    """Whether nested data has a tensor in it."""
    if isinstance(value, torch.Tensor):
        return True
    if isinstance(value, tuple | list):
        return any(map(any_tensor, value))
    return isinstance(value, Mapping) and any(map(any_tensor, value.values()))


def unusual(tensor: torch.Tensor) -> str | None:
    """What keeps a tensor from being sent as its numbers; None where nothing does."""
    if tensor.is_nested:
        return "nested"
    if tensor.layout != torch.strided:
        return "sparse"
    if tensor.is_quantized:
        return "quantized"
    return "meta" if tensor.is_meta else None
