"""Convert data around its tensors to bytes and back: the tensors are sent apart."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any, final

import torch
from accel_comm.transports import serialization


def pack(value: object) -> tuple[bytes, list[torch.Tensor]]:
    """Return a value as bytes without its bare tensors, and these tensors in the order of the value."""
    buffer = io.BytesIO()
    pickler = TensorPickler(buffer, protocol=pickle.HIGHEST_PROTOCOL)
    serialization.dump(pickler, value)
    return buffer.getvalue(), pickler.tensors


def unpack(packed: bytes, tensors: Sequence[torch.Tensor]) -> Any:
    """Return the value that `pack` was given, with these tensors in it."""
    unpickler = TensorUnpickler(io.BytesIO(packed))
    unpickler.tensors = tensors
    return unpickler.load()


@final
class TensorPickler(pickle.Pickler):
    """A pickler that keeps bare tensors instead of writing them."""

    def __init__(self, buffer: io.BytesIO, protocol: int) -> None:
        super().__init__(buffer, protocol)
        self.tensors: list[torch.Tensor] = []
        self._places: dict[int, int] = {}

    def persistent_id(self, value: Any) -> int | None:
        """Return the index of a bare tensor, or None for any other value."""
        if not serialization.is_bare(value):
            return None
        place = self._places.setdefault(id(value), len(self.tensors))
        if place == len(self.tensors):
            self.tensors.append(value)
        return place


@final
class TensorUnpickler(pickle.Unpickler):
    """An unpickler that puts tensors where the pickler has left them out."""

    tensors: Sequence[torch.Tensor]

    def persistent_load(self, place: Any) -> Any:
        """Return the tensor of an index."""
        return self.tensors[place]
