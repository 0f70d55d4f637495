"""The rank that writes each part of the tensors of a sharded model: each number once, and all about equally much."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from accel_checkpoint import CheckpointError
from accel_checkpoint.piece_index import PieceIndex, PieceLayout
from accel_checkpoint.pieces import blocks_of, divided_axes, is_distributed, packed_groups, piece_name
from accel_checkpoint.stored_tensors import describe_pieces
from accel_checkpoint.tensor_file import NAMES
from accel_state.mesh import Axis, MeshSpec
from torch import nn

Tensors = dict[str, torch.Tensor]
#: bytes of tensors that all ranks hold which a rank writes before the next takes its turn: whoever loads them opens
#: the file of each of these ranks
WORTH_A_FILE = 1 << 24


def has_parts(tensors: Mapping[str, Any]) -> bool:
    """Return True if ranks hold parts of some of the tensors."""
    return any(map(is_distributed, tensors.values()))


def is_divided(model: nn.Module) -> bool:
    """Return True if ranks hold parts of some of the weights of a model. No rank waits for others."""
    return any(map(is_distributed, [*model.parameters(), *model.buffers()]))


def part_name(file: str, rank: int) -> str:
    """Return the name of the file with the part of a rank."""
    stem, _, suffix = file.rpartition(".")
    return f"{stem}.rank{rank:05d}.{suffix}"


def layout(mesh: MeshSpec) -> dict[str, int]:
    """Return the axes of the mesh over which ranks are spread, with their sizes."""
    return {str(axis): size for axis, size in mesh.sizes.items() if size > 1}


def copy_axes(tensor: torch.Tensor, mesh: MeshSpec) -> tuple[Axis, ...]:
    """Return the axes of the mesh along which ranks hold the same values.

    Raises:
        CheckpointError: The tensor is divided over a mesh of the user's own.
    """
    if not is_distributed(tensor):
        return tuple(Axis)
    divided: Any = tensor
    names = divided.device_mesh.mesh_dim_names or ()
    if not set(names) <= set(map(str, Axis)):
        raise CheckpointError(
            f"a tensor is divided over a mesh with the axes {', '.join(names) or 'without names'}: only tensors on the"
            f" mesh of the run are saved ({', '.join(Axis)}), which Accelerator(parallelism_config=...) makes"
        )
    dividing = {names[axis] for axis, _ in divided_axes(tensor)}
    return tuple(axis for axis in Axis if axis not in dividing)


def writers(tensors: Mapping[str, torch.Tensor], mesh: MeshSpec) -> Iterator[tuple[str, tuple[Axis, ...], int]]:
    """Yield each tensor, the axes along which ranks hold the same of it, and which of these writes what it holds.

    They take turns, by size. A rank that writes what all hold writes on until it has so much that a file is worth it.

    Args:
        tensors: The tensors, by name.
        mesh: How ranks are arranged.
    """
    loads: dict[tuple[Axis, ...], list[int]] = {}
    turns = defaultdict[tuple[Axis, ...], int](int)
    for name, tensor in tensors.items():
        axes = copy_axes(tensor, mesh)
        load = loads.setdefault(axes, [0] * math.prod([mesh.sizes[axis] for axis in axes]))
        if is_distributed(tensor) or load[turns[axes]] >= WORTH_A_FILE:
            turns[axes] = load.index(min(load))
        load[turns[axes]] += max(tensor.nbytes, 1)
        yield name, axes, turns[axes]


def names_to_write(tensors: Mapping[str, torch.Tensor], mesh: MeshSpec, rank: int) -> Iterator[str]:
    """Yield the tensors of which this rank writes what it holds.

    Args:
        tensors: The tensors, by name.
        mesh: How ranks are arranged.
        rank: This rank.
    """
    coordinate, sizes = mesh.coordinate(rank), mesh.sizes
    for name, axes, turn in writers(tensors, mesh):
        place = 0
        for axis in axes:
            place = place * sizes[axis] + coordinate[axis]
        if place == turn:
            yield name


def index_of(tensors: Mapping[str, torch.Tensor], aliases: Mapping[str, str], mesh: MeshSpec) -> PieceIndex:
    """Return which rank writes which block of the tensors of a file.

    Args:
        tensors: The tensors, by name.
        aliases: Names that share the tensor of another name.
        mesh: How ranks are arranged.

    Raises:
        CheckpointError: A tensor is divided in a way that is not known here.
    """
    layouts = {}
    for name, _, turn in writers(tensors, mesh):
        tensor: Any = tensors[name]
        axes = divided_axes(tensor) if is_distributed(tensor) else []
        divided = [(str(count), dim) for dim, count in packed_groups(tensor).items()]
        divided += [(str(tensor.device_mesh.mesh_dim_names[axis]), placement.dim) for axis, placement in axes]
        layouts[name] = PieceLayout(NAMES[tensor.dtype], tuple(tensor.shape), tuple(divided), turn)
    layouts |= {alias: layouts[name] for alias, name in aliases.items()}
    return PieceIndex({str(axis): size for axis, size in mesh.sizes.items()}, layouts)


def own_part(tensors: Mapping[str, torch.Tensor], mesh: MeshSpec, rank: int) -> tuple[Tensors, dict[str, str]]:
    """Return what this rank writes of the tensors of a file, and the metadata that says where it belongs.

    Args:
        tensors: The tensors, by name.
        mesh: How ranks are arranged.
        rank: This rank.

    Raises:
        CheckpointError: A tensor is divided in a way that is not known here.
    """
    part: Tensors = {}
    pieces = {}
    for name in names_to_write(tensors, mesh, rank):
        whole, groups = tuple(tensors[name].shape), packed_groups(tensors[name])
        for box, held in blocks_of(tensors[name]):
            if box.numel == 0 and tensors[name].numel():
                continue
            stored = piece_name(name, box, whole, groups)
            part[stored] = held
            if box.shape != whole:
                pieces[stored] = (whole, box)
    return part, describe_pieces(pieces)
