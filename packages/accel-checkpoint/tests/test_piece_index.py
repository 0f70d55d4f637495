"""The index of the parts of a checkpoint: which part has which block, without opening any."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from accel_checkpoint import CheckpointError, FileDigest, Manifest, TensorFile, serialize, stored_tensors
from accel_checkpoint.filesystem import Filesystem
from accel_checkpoint.piece_index import PIECE_INDEX, PieceIndex, PieceLayout, index_text, read_indexes
from accel_checkpoint.pieces import Box, whole_box
from accel_checkpoint.stored_tensors import IndexedParts, StoredTensors, describe_pieces
from hypothesis import given
from hypothesis import strategies as st
from torch import arange, equal

AXES = ["outer", "inner", "last"]


@st.composite
def cases(draw: st.DrawFn) -> tuple[PieceIndex, Box]:
    """An index of one tensor over three axes, and a block of the tensor."""
    shape = tuple(draw(st.lists(st.integers(0, 7), min_size=1, max_size=3)))
    axes = {axis: draw(st.integers(1, 3)) for axis in AXES}
    divided = tuple((axis, draw(st.integers(0, len(shape) - 1))) for axis in draw(st.permutations(AXES)))
    divided = divided[: draw(st.integers(0, 3))]
    copies = math.prod(size for axis, size in axes.items() if axis not in dict(divided))
    begins = [draw(st.integers(0, size)) for size in shape]
    lengths = [draw(st.integers(0, size - begin)) for size, begin in zip(shape, begins, strict=True)]
    layout = PieceLayout("F32", shape, divided, draw(st.integers(0, copies - 1)))
    return PieceIndex(axes, {"x": layout}), Box(tuple(begins), tuple(lengths))


def block_of(layout: PieceLayout, axes: dict[str, int], place: dict[str, int]) -> Box:
    """What torch's `chunk` gives the process at this place."""
    offset, shape = [0] * len(layout.shape), list(layout.shape)
    for axis, dim in layout.divided:
        chunk = -(-shape[dim] // axes[axis])
        begin = min(place[axis] * chunk, shape[dim])
        offset[dim], shape[dim] = offset[dim] + begin, min(chunk, shape[dim] - begin)
    return Box(tuple(offset), tuple(shape))


@given(cases())
def test_an_index_finds_the_parts_that_overlap_a_block_and_no_others(case: tuple[PieceIndex, Box]) -> None:
    index, wanted = case
    axes, layout = dict(index.axes), index.layouts["x"]
    expected = set()
    for part in range(math.prod(axes.values())):
        place, copy, rest = {}, 0, part
        for axis in reversed(AXES):
            rest, place[axis] = divmod(rest, axes[axis])
        for axis in AXES:
            copy = copy if axis in dict(layout.divided) else copy * axes[axis] + place[axis]
        block = block_of(layout, axes, place)
        common = block.overlap(wanted)
        if copy == layout.copy and common is not None and common.numel:
            expected.add((part, block))
    found = [(part, box) for part, box in index.overlapping("x", wanted) if wanted.numel]
    assert len(found) == len(expected)
    assert set(found) == expected
    assert PieceIndex.read(json.loads(json.dumps(index.as_json())), math.prod(axes.values())) == index


def written(folder: Path, parts: int) -> tuple[PieceIndex, Manifest]:
    """A vector in so many parts of two numbers, and a scalar in the last part."""
    files = {}
    for part in range(parts):
        box = Box((2 * part,), (2,))
        tensors = {"x": arange(2.0 * part, 2.0 * part + 2)} | ({"step": arange(1.0)[0]} if part == parts - 1 else {})
        content = serialize(tensors, describe_pieces({"x": ((2 * parts,), box)}))
        files[str(part)] = Filesystem().write(folder / str(part), content)
    scalar = PieceLayout("F32", (), (), parts - 1)
    index = PieceIndex({"shard": parts}, {"x": PieceLayout("F32", (2 * parts,), (("shard", 0),), 0), "step": scalar})
    text = index_text({"model": index}).encode()
    files[PIECE_INDEX] = Filesystem().write(folder / PIECE_INDEX, [text])
    return index, Manifest(files=files, parts={"model": [str(part) for part in range(parts)]})


def test_only_parts_that_overlap_a_block_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index, manifest = written(tmp_path, 16)
    assert read_indexes(tmp_path, manifest) == {"model": index}
    opened = []

    def opening(path: Path) -> TensorFile:
        opened.append(path.name)
        return TensorFile(path)

    monkeypatch.setattr(stored_tensors, "TensorFile", opening)
    parts = IndexedParts(index, [tmp_path / str(part) for part in range(16)])
    stored = StoredTensors([], [parts])
    assert stored.names == ["x", "step"]
    assert stored.shape_and_dtype("x")[0] == (32,)
    assert opened == []
    assert [box.offset for _, _, box in stored.pieces("x", Box((5,), (2,)))] == [(4,), (6,)]
    assert [len(list(stored.pieces("step", whole_box(()))))] == [1]
    assert opened == ["2", "3", "15"]
    assert equal(stored.read("x"), arange(32.0))
    assert len(opened) == 16


@pytest.mark.parametrize(
    "change",
    [
        {"axes": {"shard": 3}},
        {"axes": {"shard": "2"}},
        {"axes": {"shard": 2, "zero": 0}},
        {"layouts": [["F32", [4], [["other", 0]], 0]]},
        {"layouts": [["F32", [4], [["shard", 1]], 0]]},
        {"layouts": [["F32", [4], [["shard", 0], ["shard", 0]], 0]]},
        {"layouts": [["F32", [4], [["shard", 0]], 1]]},
        {"layouts": [["F32", [-4], [["shard", 0]], 0]]},
        {"layouts": [["none", [4], [["shard", 0]], 0]]},
        {"layouts": [3]},
        {"tensors": {"x": -1}},
        {"tensors": {"x": 2}},
        {"tensors": []},
    ],
)
def test_an_index_that_describes_nothing_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    entry = written(tmp_path, 2)[0].as_json() | change
    content = json.dumps({"model": entry}).encode()
    (tmp_path / PIECE_INDEX).write_bytes(content)
    manifest = Manifest(files={PIECE_INDEX: FileDigest.of([content])}, parts={"model": ["0", "1"]})
    with pytest.raises(CheckpointError, match="is not an index"):
        read_indexes(tmp_path, manifest)


def test_an_index_or_a_part_that_was_exchanged_is_refused(tmp_path: Path) -> None:
    index, manifest = written(tmp_path, 2)
    parts = IndexedParts(index, [tmp_path / "1", tmp_path / "0"])
    with pytest.raises(CheckpointError, match="not the one that the index says"):
        list(parts.pieces("x", whole_box((4,))))
    with pytest.raises(CheckpointError, match="has no tensor step"):
        list(parts.pieces("step", whole_box(())))
    (tmp_path / PIECE_INDEX).write_text(index_text({}))
    with pytest.raises(CheckpointError, match="not what was written"):
        read_indexes(tmp_path, manifest)
