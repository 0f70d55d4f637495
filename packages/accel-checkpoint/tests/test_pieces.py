"""Pieces of tensors in several files, which together have each number exactly once, or are refused."""

import itertools
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from accel_checkpoint import CheckpointError, FileDigest, Manifest, TensorFile, serialize
from accel_checkpoint.filesystem import Filesystem
from accel_checkpoint.inspect import print_verification
from accel_checkpoint.manifest import MANIFEST
from accel_checkpoint.pieces import Box, cover_once, whole_box
from accel_checkpoint.stored_tensors import StoredTensors, describe_pieces
from accel_testing import stretched
from hypothesis import example, given
from hypothesis import strategies as st


def in_parts(box: Box, draw: st.DrawFn) -> list[Box]:
    """Cuts a block along dims at places that are drawn; a cut at an end leaves an empty block."""
    if not box.shape or draw(st.integers(0, 2)):
        return [box]
    dim = draw(st.integers(0, len(box.shape) - 1))
    cut = draw(st.integers(0, box.shape[dim]))
    low, high = list(box.shape), list(box.shape)
    low[dim], high[dim] = cut, box.shape[dim] - cut
    moved = list(box.offset)
    moved[dim] += cut
    return [*in_parts(Box(box.offset, tuple(low)), draw), *in_parts(Box(tuple(moved), tuple(high)), draw)]


@st.composite
def blocks(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Box]]:
    """The shape of a tensor, and its parts, of which some may be moved, doubled, cut short or left out."""
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    boxes = [part for half in in_parts(whole_box(shape), draw) for part in in_parts(half, draw)]
    for _ in range(draw(st.integers(0, 2))):
        if boxes:
            place = draw(st.integers(0, len(boxes) - 1))
            old = boxes.pop(place)
            lengths = [draw(st.integers(0, size)) for size in shape]
            begins = [draw(st.integers(0, size - length)) for size, length in zip(shape, lengths, strict=True)]
            moved = [draw(st.integers(0, size - length)) for size, length in zip(shape, old.shape, strict=True)]
            boxes += draw(
                st.sampled_from([[], [old, old], [Box(tuple(moved), old.shape)], [Box(tuple(begins), tuple(lengths))]])
            )
    return shape, boxes


PINWHEEL = [
    Box((0, 0), (2, 1)), Box((0, 1), (1, 2)), Box((1, 2), (2, 1)), Box((2, 0), (1, 2)), Box((1, 1), (1, 1))
]  # fmt: skip


@given(blocks())
@example(((3, 3), PINWHEEL))  # no cut through the whole leaves two parts
@example(((), [whole_box(())]))
@example(((), [whole_box(())] * 2))
@example(((4,), [Box((0,), (2,)), Box((1,), (2,))]))  # as many numbers as the whole
@example(((4, 4), [Box((0, 0), (2, 4)), Box((1, 0), (2, 4))]))
def test_blocks_cover_a_tensor_once_if_each_number_is_in_one(found: tuple[tuple[int, ...], list[Box]]) -> None:
    shape, boxes = found
    every = Counter(
        place
        for box in boxes
        for place in itertools.product(
            *(range(begin, begin + length) for begin, length in zip(box.offset, box.shape, strict=True))
        )
    )
    once = every == Counter(itertools.product(*map(range, shape)))
    assert cover_once(shape, boxes) == once


def stored(folder: Path, shape: tuple[int, ...], boxes: list[Box]) -> StoredTensors:
    whole = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    for number, box in enumerate(boxes):
        tensors = {"x": box.of(whole, whole_box(shape)).clone()}
        Filesystem().write(folder / f"{number}", serialize(tensors, describe_pieces({"x": (shape, box)})))
    return StoredTensors([TensorFile(folder / str(number)) for number in range(len(boxes))])


@pytest.mark.parametrize(
    ("shape", "boxes"),
    [
        ((4,), [Box((0,), (2,)), Box((2,), (2,)), Box((4,), (0,))]),
        ((3, 3), PINWHEEL),
        ((0, 2), [Box((0, 0), (0, 2)), Box((0, 0), (0, 2))]),
        ((), [whole_box(())]),
    ],
    ids=["rows", "boxes", "empty", "a scalar"],
)
def test_pieces_that_cover_a_tensor_are_read_as_it(tmp_path: Path, shape: tuple[int, ...], boxes: list[Box]) -> None:
    read = stored(tmp_path, shape, boxes).read("x")
    assert read.equal(torch.arange(float(read.numel())).reshape(shape))


@pytest.mark.parametrize(
    ("shape", "boxes"),
    [
        ((4,), [Box((0,), (2,)), Box((1,), (2,))]),
        ((3, 3), [*PINWHEEL[:4], Box((0, 0), (1, 1))]),
        ((4,), [Box((0,), (2,))] * 2),
        ((), [whole_box(())] * 2),
        ((4,), [Box((0,), (3,))]),
    ],
    ids=["moved rows", "a moved box", "twice", "a scalar twice", "a gap"],
)
def test_pieces_that_overlap_or_leave_a_gap_are_refused(
    tmp_path: Path, shape: tuple[int, ...], boxes: list[Box]
) -> None:
    with pytest.raises(CheckpointError, match=rf"x in {tmp_path} is damaged: its {len(boxes)} pieces .* exactly once"):
        stored(tmp_path, shape, boxes)


def test_the_time_of_a_check_grows_with_the_number_of_pieces() -> None:
    """30,000 took 0.1 s; compared pair by pair they would take minutes."""
    boxes = [Box((row, column), (1, 1)) for row in range(300) for column in range(100)]
    begun = time.monotonic()
    assert cover_once((300, 100), boxes)
    assert time.monotonic() - begun < stretched(10)


@pytest.mark.parametrize("begin", [1, 2])
def test_the_command_verify_finds_pieces_whose_hashes_are_right(tmp_path: Path, begin: int) -> None:
    with suppress(CheckpointError):
        stored(tmp_path, (4,), [Box((0,), (2,)), Box((begin,), (2,))])
    files = {name: FileDigest.of([memoryview((tmp_path / name).read_bytes())]) for name in ("0", "1")}
    (tmp_path / MANIFEST).write_bytes(Manifest(files=files, parts={"whole": ["0", "1"]}).as_bytes())
    problems = print_verification(tmp_path)
    assert [problem.startswith(f"x in {tmp_path} is damaged") for problem in problems] == [True] * (begin == 1)
