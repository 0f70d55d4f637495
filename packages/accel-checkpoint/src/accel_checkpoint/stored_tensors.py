"""Read tensors by name, each whole in one file or in pieces in several, and only the wanted blocks of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, final

import torch

from accel_checkpoint.bounded_json import compact_json, parse_json
from accel_checkpoint.errors import CheckpointError
from accel_checkpoint.parallel_copy import parallel_copy
from accel_checkpoint.piece_index import PieceIndex
from accel_checkpoint.pieces import Box, blocks_of, cover_once, is_distributed, piece_name, whole_box
from accel_checkpoint.tensor_file import DTYPES, TensorFile

#: the key in the metadata of a file for the tensors of which it has pieces: for each the whole shape and the offset
PIECES = "accel.pieces"
#: the whole shape of a tensor, and where its piece begins
Placed = tuple[tuple[int, ...], tuple[int, ...]]


class _Piece(NamedTuple):
    file: TensorFile
    name: str
    box: Box


def describe_pieces(pieces: Mapping[str, tuple[Sequence[int], Box]]) -> dict[str, str]:
    """Return the metadata of a file that has pieces of tensors.

    Args:
        pieces: For each tensor the shape of the whole, and the block in the file.
    """
    if not pieces:
        return {}
    placed = {name: [list(shape), list(box.offset)] for name, (shape, box) in pieces.items()}
    return {PIECES: compact_json(placed)}


@final
class IndexedParts:
    """The parts of a file of divided tensors, each opened when a block in it is wanted.

    Args:
        index: The blocks in each part.
        paths: The parts.
    """

    def __init__(self, index: PieceIndex, paths: Sequence[Path]) -> None:
        self.index, self._paths = index, paths
        self._open: dict[int, tuple[TensorFile, dict[str, str], dict[str, Placed]]] = {}

    def pieces(self, name: str, wanted: Box) -> Iterator[_Piece]:
        """Yield the pieces of a tensor that overlap a block.

        Raises:
            CheckpointError: A part is damaged, or has not the block that the index says.
        """
        layout = self.index.layouts[name]
        for number, box in self.index.overlapping(name, wanted):
            if number not in self._open:
                file = TensorFile(self._paths[number])
                self._open[number] = file, file.header.stored_names(), _placed(file)
            file, names, placed = self._open[number]
            stored = piece_name(names.get(name, name), box, layout.shape, layout.groups)
            shape, dtype = file.shape_and_dtype(stored)
            whole, offset = placed.get(stored, (shape, (0,) * len(shape)))
            if (whole, dtype, Box(offset, shape)) != (layout.shape, DTYPES[layout.dtype], box):
                raise CheckpointError(f"{file.path} is damaged: its piece of {name} is not the one that the index says")
            yield _Piece(file, stored, box)


@final
class StoredTensors:
    """The tensors of one or several safetensors files.

    Args:
        files: The files, which may hold pieces of the same tensors.
        indexed: Files of divided tensors that have an index.

    Raises:
        CheckpointError: Pieces do not fit together, or do not cover each tensor exactly once.
    """

    def __init__(self, files: Sequence[TensorFile], indexed: Sequence[IndexedParts] = ()) -> None:
        self._pieces: dict[str, list[_Piece]] = {}
        self._indexed = {name: parts for parts in indexed for name in parts.index.layouts}
        self._types: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        for file in files:
            placed = _placed(file)
            for name, stored in file.header.stored_names().items():
                shape, dtype = file.shape_and_dtype(stored)
                whole, offset = placed.get(stored, (shape, (0,) * len(shape)))
                box = Box(offset, shape)
                if self._types.setdefault(name, (whole, dtype)) != (whole, dtype) or not _is_inside(box, whole):
                    raise CheckpointError(f"{file.path} is damaged: its piece of {name} does not fit the others")
                self._pieces.setdefault(name, []).append(_Piece(file, stored, box))
        for name, pieces in self._pieces.items():
            shape, boxes = self._types[name][0], [piece.box for piece in pieces]
            if not cover_once(shape, boxes):
                have = f"{sum(box.numel for box in boxes):,} of {math.prod(shape):,} numbers"
                raise CheckpointError(
                    f"{name} in {pieces[0].file.path.parent} is damaged: its {len(pieces)} pieces have {have}, and have"
                    f" to cover its shape {list(shape)} exactly once"
                )
        layouts = {name: parts.index.layouts[name] for name, parts in self._indexed.items()}
        self._types |= {name: (layout.shape, DTYPES[layout.dtype]) for name, layout in layouts.items()}

    @property
    def names(self) -> list[str]:
        """The names of all tensors, also of those that share the memory of others."""
        return list(self._types)

    def shape_and_dtype(self, name: str) -> tuple[tuple[int, ...], torch.dtype]:
        """Return the shape and dtype of a whole tensor, whose values are not read.

        Raises:
            CheckpointError: There is no such tensor.
        """
        if name not in self._types:
            raise CheckpointError(f"no file of the checkpoint has a tensor {name}")
        return self._types[name]

    def read(self, name: str) -> torch.Tensor:
        """Return a whole tensor, in memory of its own."""
        shape, dtype = self.shape_and_dtype(name)
        tensor = torch.empty(shape, dtype=dtype, device="cpu")
        parallel_copy(self.copies(name, tensor))
        return tensor

    def read_like(self, name: str, layout: torch.Tensor | None = None) -> torch.Tensor:
        """Return a tensor, distributed as another is. Only the part of this process is read.

        Args:
            name: Name of the tensor.
            layout: Tensor whose distribution is taken if it is distributed and of this shape.

        Returns:
            The tensor. A whole one may be a view of the file: copy it before it is changed.
        """
        shape, dtype = self.shape_and_dtype(name)
        if layout is not None and is_distributed(layout) and tuple(layout.shape) == shape:
            divided = torch.empty_like(layout.detach(), dtype=dtype, requires_grad=False)
            for part, stored in self.copies(name, divided):
                part.copy_(stored)
            return divided
        pieces = list(self.pieces(name, whole_box(shape)))
        return pieces[0].file[pieces[0].name] if len(pieces) == 1 else self.read(name)

    def copies(self, name: str, tensor: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return pairs of a part of what `tensor` holds here, and the view of a file with the values of this part."""
        return [
            (common.of(held, wanted), common.of(piece.file[piece.name], piece.box))
            for wanted, held in blocks_of(tensor)
            for piece in self.pieces(name, wanted)
            if (common := piece.box.overlap(wanted)) is not None
        ]

    def pieces(self, name: str, wanted: Box) -> Iterable[_Piece]:
        """Return the pieces of a tensor, at least those that overlap a block.

        Raises:
            CheckpointError: A part is damaged.
        """
        return self._indexed[name].pieces(name, wanted) if name in self._indexed else self._pieces[name]


def _is_inside(box: Box, whole: tuple[int, ...]) -> bool:
    return len(box.offset) == len(whole) == len(box.shape) and all(
        begin >= 0 and begin + length <= size for begin, length, size in zip(box.offset, box.shape, whole, strict=True)
    )


def _placed(file: TensorFile) -> dict[str, Placed]:
    """Return the whole shape and the offset of each piece in a file."""
    try:
        placed = parse_json(file.header.metadata.get(PIECES, "{}"))
        lists = {name: (tuple(shape), tuple(offset)) for name, (shape, offset) in placed.items()}
        if all(type(number) is int for pair in lists.values() for numbers in pair for number in numbers):
            return lists
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{file.path} is damaged: its metadata {PIECES!r} names no pieces: {error}") from error
    raise CheckpointError(f"{file.path} is damaged: its metadata {PIECES!r} has numbers that are not whole")
