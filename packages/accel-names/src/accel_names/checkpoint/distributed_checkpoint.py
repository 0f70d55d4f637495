"""Read folders that torch.distributed.checkpoint wrote, without running code from them."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import torch
from accel_checkpoint import CheckpointError
from accel_checkpoint.load import read_plain
from accel_checkpoint.manifest import is_inside, open_regular, read_regular
from accel_checkpoint.pieces import Box, blocks_of, is_distributed, whole_box

#: where a value is in the nested state
StatePath = tuple[str | int, ...]
#: the file that says where each tensor is
METADATA = ".metadata"
LONGEST = 1 << 28


class _Record:
    """The fields of any object in the metadata."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


class _Records(pickle.Unpickler):
    """A reader of the metadata as records, which calls no function that it names."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a record in place of a class of the format, and a tuple in place of a shape."""
        if (module, name) == ("torch", "Size"):
            return tuple
        known = ("torch", "torch.serialization", "pathlib", "pathlib._local", "torch.distributed.checkpoint")
        if module in known or module.startswith("torch.distributed.checkpoint."):
            return _Record
        raise pickle.UnpicklingError(f"it names {module}.{name}")


@final
class DistributedCheckpoint:
    """The values of a folder, by their paths in the state that was saved.

    Raises:
        CheckpointError: If the folder is damaged, or of a format that is not known here.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        #: the shape of each tensor
        self.shapes: dict[StatePath, tuple[int, ...]] = {}
        self._places: dict[StatePath, list[tuple[Box | None, Any]]] = {}
        try:
            metadata = _Records(io.BytesIO(read_regular(folder / METADATA, LONGEST))).load()
            storage: dict[str, list[tuple[tuple[int, ...], Any]]] = {}
            for index, info in metadata.storage_data.items():
                storage.setdefault(index.fqn, []).append((tuple(getattr(index, "offset", None) or ()), info))
            for name, entry in metadata.state_dict_metadata.items():
                path = tuple(metadata.planner_data[name])
                if not hasattr(entry, "chunks"):
                    self._places[path] = [(None, info) for _, info in storage[name]]
                    continue
                self.shapes[path] = tuple(entry.size)
                sizes = {tuple(chunk.offsets): tuple(chunk.sizes) for chunk in entry.chunks}
                self._places[path] = [(Box(offset, sizes[offset]), info) for offset, info in storage[name]]
        except CheckpointError:
            raise
        except Exception as error:  # a pickle that is damaged may raise anything
            raise CheckpointError(f"{folder / METADATA} cannot be read as plain metadata: {error}") from error

    def read(self, path: StatePath, layout: torch.Tensor | None = None) -> Any:
        """Return the value at a path.

        Args:
            path: The path.
            layout: A tensor of the same shape. If it is divided, the value is divided as it is, and only the parts that
                this process holds are read.
        """
        if path not in self.shapes:
            return self._load(self._places[path][0][1])
        shape = self.shapes[path]
        like = layout is not None and is_distributed(layout) and tuple(layout.shape) == shape
        target: torch.Tensor | None = None
        boxes = [box for box, _ in blocks_of(layout)] if like and layout is not None else [whole_box(shape)]
        filled, wanted = 0, sum(box.numel for box in boxes)
        for box, info in self._places[path]:
            if box is None or (target is not None and not any(map(box.overlap, boxes))):
                continue
            stored = self._load(info)
            if target is None:
                target = _empty(layout if like else None, shape, stored.dtype)
            for own, held in blocks_of(target):
                if (common := box.overlap(own)) is not None:
                    common.of(held, own).copy_(common.of(stored, box))
                    filled += common.numel
        if target is None or filled != wanted:
            raise CheckpointError(f"{self.folder} has {filled:,} of {wanted:,} numbers of {path}")
        return target

    def state(self, layout: Callable[[StatePath], torch.Tensor | None]) -> dict[Any, Any]:
        """Return all values, nested as they were saved, with a mapping of numbers for a list.

        Args:
            layout: Returns a tensor that the value at a path is divided like, or None.
        """
        nested: dict[Any, Any] = {}
        for path in self._places:
            inner = nested
            for key in path[:-1]:
                inner = inner.setdefault(key, {})
            inner[path[-1]] = self.read(path, layout(path))
        return nested

    def _load(self, info: Any) -> Any:
        if not is_inside(info.relative_path) or getattr(info, "transform_descriptors", None):
            raise CheckpointError(f"{self.folder}: {info.relative_path!r} is outside of it, or compressed")
        with open_regular(self.folder / info.relative_path) as file:
            file.seek(info.offset)
            return read_plain(self.folder / info.relative_path, io.BytesIO(file.read(info.length)))


def _empty(layout: torch.Tensor | None, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    if layout is None:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return torch.empty_like(layout.detach(), dtype=dtype, requires_grad=False)
