"""The rank that writes each part of the tensors of a sharded model: each number once, and all about equally much."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from accel_checkpoint import CheckpointError
from accel_checkpoint.pieces import box_of, divided_axes, held_part, is_distributed
from accel_checkpoint.stored_tensors import describe_pieces
from accel_state.mesh import Axis, MeshSpec

Tensors = dict[str, torch.Tensor]


def has_parts(tensors: Mapping[str, Any]) -> bool:
    """Return True if ranks hold parts of some of the tensors."""
    return any(map(is_distributed, tensors.values()))


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


def names_to_write(tensors: Mapping[str, torch.Tensor], mesh: MeshSpec, rank: int) -> Iterator[str]:
    """Yield the tensors of which this rank writes what it holds: ranks that hold the same take turns, by size.

    Args:
        tensors: The tensors, by name.
        mesh: How ranks are arranged.
        rank: This rank.
    """
    coordinate, sizes = mesh.coordinate(rank), mesh.sizes
    loads: dict[tuple[Axis, ...], list[int]] = {}
    for name, tensor in tensors.items():
        axes = copy_axes(tensor, mesh)
        load = loads.setdefault(axes, [0] * math.prod([sizes[axis] for axis in axes]))
        turn = load.index(min(load))
        load[turn] += max(tensor.nbytes, 1)
        place = 0
        for axis in axes:
            place = place * sizes[axis] + coordinate[axis]
        if place == turn:
            yield name


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
        box, whole = box_of(tensors[name]), tuple(tensors[name].shape)
        if box.numel == 0 and tensors[name].numel():
            continue
        part[name] = held_part(tensors[name])
        if box.shape != whole:
            pieces[name] = (whole, box)
    return part, describe_pieces(pieces)
