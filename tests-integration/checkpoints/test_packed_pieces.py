"""Weights with the rows of two layers behind each other, of each of which a process holds a part, in files of parts."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from accel.checkpoint.parts import index_of, own_part
from accel_checkpoint import CheckpointError, serialize
from accel_checkpoint.filesystem import Filesystem
from accel_checkpoint.piece_index import PieceIndex
from accel_checkpoint.pieces import blocks_of, cover_once, held_part, whole_box
from accel_checkpoint.stored_tensors import IndexedParts, StoredTensors
from accel_state.mesh import MeshSpec
from torch import Tensor
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

#: experts, rows of two layers behind each other, columns
SHAPE = (3, 8, 2)
#: how a tensor is divided over sharded copies, shards and layers, and over how many ranks each
LAYOUTS: dict[str, tuple[MeshSpec, tuple[Any, ...]]] = {
    "packed": (MeshSpec(tensor=2), (Replicate(), Replicate(), _StridedShard(1, split_factor=2))),
    "packed over four": (MeshSpec(tensor=4), (Replicate(), Replicate(), _StridedShard(1, split_factor=2))),
    "packed in four": (MeshSpec(tensor=2), (Replicate(), Replicate(), _StridedShard(1, split_factor=4))),
    "packed and sharded": (MeshSpec(shard=2, tensor=2), (Replicate(), Shard(0), _StridedShard(1, split_factor=2))),
    "copies": (MeshSpec(replicate=2, tensor=2), (Replicate(), Replicate(), _StridedShard(1, split_factor=2))),
    "experts": (MeshSpec(shard=2, tensor=2), (Replicate(), Shard(0), Shard(0))),
    "sharded after layers": (
        MeshSpec(shard=2, tensor=2),
        (Replicate(), _StridedShard(1, split_factor=2), Shard(1)),
    ),
}


@contextmanager
def rank_of(number: int, ranks: int) -> Iterator[None]:
    """This process is one of so many, which exchange nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=number, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


def numbers() -> Tensor:
    return torch.arange(48.0).view(SHAPE)


def divided(spec: MeshSpec, placements: tuple[Any, ...]) -> Tensor:
    return distribute_tensor(numbers(), spec.build("cpu"), placements, src_data_rank=None)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_blocks_are_where_torch_has_taken_them_from(layout: str) -> None:
    spec, placements = LAYOUTS[layout]
    boxes = []
    for rank in range(spec.world_size):
        with rank_of(rank, spec.world_size):
            blocks = blocks_of(divided(spec, placements))
        for box, held in blocks:
            assert torch.equal(box.of(numbers(), whole_box(SHAPE)), held)
        if rank < spec.world_size // spec.replicate:
            boxes += [box for box, _ in blocks]
    assert cover_once(SHAPE, boxes)


def save(folder: Path, spec: MeshSpec, placements: tuple[Any, ...]) -> PieceIndex:
    """Write what each rank writes of a tensor, and return where it is."""
    for rank in range(spec.world_size):
        with rank_of(rank, spec.world_size):
            tensors = {"x": divided(spec, placements), "step": torch.ones(())}
            part, metadata = own_part(tensors, spec, rank)
            index = index_of(tensors, {}, spec)
        Filesystem().write(folder / str(rank), serialize(part, metadata))
    return PieceIndex.read(index.as_json(), spec.world_size)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_tensor_of_any_layout_is_read_whole_and_by_any_other(tmp_path: Path, layout: str) -> None:
    index = save(tmp_path, *LAYOUTS[layout])
    ranks = LAYOUTS[layout][0].world_size
    stored = StoredTensors([], [IndexedParts(index, [tmp_path / str(rank) for rank in range(ranks)])])
    assert torch.equal(stored.read("x"), numbers())
    for spec, placements in LAYOUTS.values():
        for rank in range(spec.world_size):
            with rank_of(rank, spec.world_size):
                tensor = divided(spec, placements)
                wanted = held_part(tensor).clone()
                held_part(tensor).zero_()
                for part, found in stored.copies("x", tensor):
                    part.copy_(found)
                assert torch.equal(held_part(tensor), wanted)


def test_packed_rows_that_are_divided_twice_are_refused() -> None:
    with rank_of(0, 4):
        twice = distribute_tensor(
            torch.zeros(8, 2),
            MeshSpec(shard=2, tensor=2).build("cpu"),
            (Replicate(), _StridedShard(0, split_factor=2), _StridedShard(0, split_factor=2)),
            src_data_rank=None,
        )
        with pytest.raises(CheckpointError, match="packed rows is divided twice in one dim"):
            blocks_of(twice)
