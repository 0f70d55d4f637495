"""Write and read an index of the parts of a checkpoint: which part has which block of each tensor."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

from accel_checkpoint.bounded_json import MOST_BYTES, compact_json, parse_json
from accel_checkpoint.errors import CheckpointError
from accel_checkpoint.filesystem import FileDigest
from accel_checkpoint.manifest import Manifest, read_regular
from accel_checkpoint.pieces import Box
from accel_checkpoint.tensor_file import DTYPES

#: the file of a checkpoint with an index for each file of divided tensors
PIECE_INDEX = "accel.pieces.json"


class PieceLayout(NamedTuple):
    """The division of a tensor over processes.

    Args:
        dtype: Name of its dtype in the format of safetensors.
        shape: Shape of the whole.
        divided: Axis of the mesh and dim of each division, as torch's `chunk` divides, in the order in which they come.
            A number in the place of an axis: so many groups, of each of which a process holds a part.
        copy: Which of the processes with equal blocks have written theirs, counted along the other axes.
    """

    dtype: str
    shape: tuple[int, ...]
    divided: tuple[tuple[str, int], ...]
    copy: int

    @property
    def groups(self) -> dict[int, int]:
        """The dims that are divided into groups first, with the number of groups."""
        return {dim: int(axis) for axis, dim in self.divided if axis.isdecimal()}


@final
@dataclass(frozen=True, slots=True)
class PieceIndex:
    """The blocks of the tensors of a file that processes have written in parts, one part each.

    Its size grows with the tensors, and not with the processes.

    Args:
        axes: Sizes of the axes over which the processes are spread, outermost first.
        layouts: Layout of each tensor, by name.
    """

    axes: Mapping[str, int]
    layouts: Mapping[str, PieceLayout]

    @classmethod
    def read(cls, entry: Any, parts: int) -> PieceIndex:
        """Return the index that `as_json` has described.

        Args:
            entry: What was described.
            parts: Number of the parts.

        Raises:
            ValueError: It describes no index of so many parts; or as KeyError, TypeError or AttributeError.
        """
        axes = dict(entry["axes"])
        if any(type(size) is not int or size < 1 for size in axes.values()) or math.prod(axes.values()) != parts:
            raise ValueError(f"its axes {axes} are not of {parts} parts")
        layouts = [
            PieceLayout(dtype, tuple(shape), tuple((axis, dim) for axis, dim in divided), copy)
            for dtype, shape, divided, copy in entry["layouts"]
        ]
        for layout in layouts:
            if not _is_valid(layout, axes):
                raise ValueError(f"its {layout} does not fit the axes {axes}")
        numbers = entry["tensors"]
        if any(type(number) is not int or number < 0 for number in numbers.values()):
            raise ValueError("it has a tensor without a layout")
        return cls(axes, {name: layouts[number] for name, number in numbers.items()})

    def as_json(self) -> dict[str, Any]:
        """Return a description that JSON can encode, in which tensors that are divided alike share a layout."""
        numbers: dict[PieceLayout, int] = {}
        tensors = {name: numbers.setdefault(layout, len(numbers)) for name, layout in self.layouts.items()}
        return {"axes": dict(self.axes), "layouts": list(numbers), "tensors": tensors}

    def overlapping(self, name: str, wanted: Box) -> Iterator[tuple[int, Box]]:
        """Yield the number of each part that has a block of a tensor within the wanted block, and all of that block."""
        layout = self.layouts[name]
        used = {axis for axis, _ in layout.divided}
        place, copy = dict.fromkeys(self.axes, 0), layout.copy
        for axis in reversed([axis for axis in self.axes if axis not in used]):
            copy, place[axis] = divmod(copy, self.axes[axis])
        dims = []
        for dim, size in enumerate(layout.shape):
            begin = wanted.offset[dim]
            cuts = [_Cut({}, 0, size)] if begin < size and wanted.shape[dim] else []
            for axis in [axis for axis, divided in layout.divided if divided == dim]:
                span = begin, begin + wanted.shape[dim]
                size = self.axes[axis] if axis in self.axes else int(axis)
                cuts = [part for cut in cuts for part in cut.divided(axis, size, *span)]
            dims.append(cuts)
        for chosen in itertools.product(*dims):
            number, at = 0, place.copy()
            for cut in chosen:
                at |= cut.where
            for axis, size in self.axes.items():
                number = number * size + at[axis]
            yield number, Box(tuple(cut.begin for cut in chosen), tuple(cut.length for cut in chosen))


class _Cut(NamedTuple):
    """The rest of a dim on the processes with these places on some axes."""

    where: dict[str, int]
    begin: int
    length: int

    def divided(self, axis: str, size: int, begin: int, end: int) -> Iterator[_Cut]:
        """Yield what is left on each place of an axis, as far as it is between two positions."""
        chunk = -(-self.length // size)
        last = -(-min(end - self.begin, self.length) // chunk)
        for place in range(max(begin - self.begin, 0) // chunk, last):
            length = min(chunk, self.length - place * chunk)
            yield _Cut({**self.where, axis: place}, self.begin + place * chunk, length)


def _is_valid(layout: PieceLayout, axes: Mapping[str, int]) -> bool:
    used = [axis for axis, _ in layout.divided if axis in axes or not axis.isdecimal()]
    numbers = [layout.copy, *layout.shape, *(dim for _, dim in layout.divided)]
    return (
        layout.dtype in DTYPES
        and all(type(number) is int and number >= 0 for number in numbers)
        and len({*used}) == len(used)
        and {*used} <= axes.keys()
        and all(dim < len(layout.shape) for _, dim in layout.divided)
        and all(count and layout.shape[dim] % count == 0 for dim, count in layout.groups.items())
        and layout.copy < math.prod(size for axis, size in axes.items() if axis not in used)
    )


def index_text(indexes: Mapping[str, PieceIndex]) -> str:
    """Return the content of the file with the index of each file of divided tensors, by its name."""
    return compact_json({file: index.as_json() for file, index in indexes.items()}) + "\n"


def read_indexes(folder: Path, manifest: Manifest) -> dict[str, PieceIndex]:
    """Return the index of each file of divided tensors, or nothing of a checkpoint that was written without.

    Args:
        folder: The checkpoint.
        manifest: Its manifest.

    Raises:
        CheckpointError: The indexes are damaged, or do not fit the manifest.
    """
    expected, path = manifest.files.get(PIECE_INDEX), folder / PIECE_INDEX
    if expected is None or not manifest.parts:
        return {}
    content = read_regular(path, MOST_BYTES)
    if FileDigest.of([content]) != expected:
        raise CheckpointError(f"{path} is damaged: its content is not what was written")
    try:
        entries = parse_json(content.decode())
        return {file: PieceIndex.read(entry, len(manifest.parts[file])) for file, entry in entries.items()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} is not an index: {type(error).__name__}: {error}") from error
