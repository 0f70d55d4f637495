"""Arrange processes in a mesh: how many share data, parameters and layers. No process group is needed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Axis(StrEnum):
    """An axis of the mesh, by the name that torch users write.

    The outermost is the first.
    """

    REPLICATE = "dp_replicate"
    SHARD = "dp_shard"
    TENSOR = "tp"


@dataclass(frozen=True, slots=True)
class MeshSpec:
    """The sizes of the mesh.

    Neighbours on the innermost axis, `tensor`, have neighbouring ranks. They hold parts of the same layers, and so
    train on the same samples.

    Args:
        replicate: Number of copies of the model, each of which may be sharded.
        shard: Ranks over which each copy is sharded.
        tensor: Ranks over which each layer is divided.
        context: Of the ranks of the other two axes, how many neighbours pass keys and values around.
        sequence: How many neighbours of these divide heads. All `context` x `sequence` share their samples.
    """

    replicate: int = 1
    shard: int = 1
    tensor: int = 1
    context: int = 1
    sequence: int = 1

    @property
    def sizes(self) -> dict[Axis, int]:
        """The size of each axis, outermost first."""
        return {Axis.REPLICATE: self.replicate, Axis.SHARD: self.shard, Axis.TENSOR: self.tensor}

    @property
    def world_size(self) -> int:
        """The number of processes of the mesh."""
        return self.replicate * self.shard * self.tensor

    @property
    def data_size(self) -> int:
        """The number of groups of ranks that train on samples of their own."""
        return self.replicate * self.shard // (self.context * self.sequence)

    @property
    def replicas(self) -> int:
        """The number of neighbouring ranks that train on the same samples."""
        return self.tensor * self.context * self.sequence

    def data_rank(self, rank: int) -> int:
        """Return the index of a rank's group among those that train on samples of their own."""
        return rank // self.replicas

    def coordinate(self, rank: int) -> dict[Axis, int]:
        """Return the index of a rank on each axis."""
        outer, tensor = divmod(rank, self.tensor)
        replicate, shard = divmod(outer, self.shard)
        return {Axis.REPLICATE: replicate, Axis.SHARD: shard, Axis.TENSOR: tensor}

    def problems(self, world_size: int) -> list[str]:
        """Return why this number of processes cannot be arranged so, or an empty list."""
        sizes = [*self.sizes.items(), ("cp", self.context), ("sp", self.sequence)]
        lines = [f"{axis}={size}: expected a whole number of at least 1" for axis, size in sizes if size < 1]
        shared, data = self.context * self.sequence, self.shard if self.shard > 1 else self.replicate
        if not lines and data % shared:
            lines.append(
                f"sequences are divided over cp {self.context} x sp {self.sequence} ranks, and {data} ranks hold the"
                " copies or the parts of a model; use a multiple"
            )
        if not lines and self.world_size != world_size:
            product = " x ".join(f"{axis} {size}" for axis, size in self.sizes.items())
            lines.append(
                f"the mesh {product} is for {self.world_size} processes, and this job has {world_size}; change a size,"
                f" or start {self.world_size} processes"
            )
        return lines

    def build(self, device_type: str) -> DeviceMesh:
        """Return torch's mesh, with the names of `Axis`.

        Collective:
            Every process must call.
        """
        from torch.distributed.device_mesh import init_device_mesh

        return init_device_mesh(
            device_type, (self.replicate, self.shard, self.tensor), mesh_dim_names=tuple(map(str, Axis))
        )
