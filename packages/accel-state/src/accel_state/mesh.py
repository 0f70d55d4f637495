"""The mesh of processes: how many share data, parameters and layers. Arithmetic; no process group is needed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Axis(StrEnum):
    """An axis of the mesh, by the name that torch users write; outermost first."""

    REPLICATE = "dp_replicate"
    SHARD = "dp_shard"
    TENSOR = "tp"


@dataclass(frozen=True, slots=True)
class MeshSpec:
    """The sizes of the mesh. Neighbours on the innermost axis, `tensor`, have neighbouring ranks.

    Ranks of one tensor-parallel group hold parts of the same layers, and so train on the same samples.
    """

    replicate: int = 1
    shard: int = 1
    tensor: int = 1

    @property
    def sizes(self) -> dict[Axis, int]:
        """The size of each axis, outermost first."""
        return {Axis.REPLICATE: self.replicate, Axis.SHARD: self.shard, Axis.TENSOR: self.tensor}

    @property
    def world_size(self) -> int:
        """How many processes the mesh has."""
        return self.replicate * self.shard * self.tensor

    @property
    def data_size(self) -> int:
        """How many groups of ranks train on samples of their own."""
        return self.replicate * self.shard

    def data_rank(self, rank: int) -> int:
        """The place of a rank among the ranks that train on samples of their own."""
        return rank // self.tensor

    def coordinate(self, rank: int) -> dict[Axis, int]:
        """The place of a rank on each axis."""
        outer, tensor = divmod(rank, self.tensor)
        replicate, shard = divmod(outer, self.shard)
        return {Axis.REPLICATE: replicate, Axis.SHARD: shard, Axis.TENSOR: tensor}

    def problems(self, world_size: int) -> list[str]:
        """Why processes cannot be arranged so, in words."""
        lines = [
            f"{axis}={size}: expected a whole number of at least 1" for axis, size in self.sizes.items() if size < 1
        ]
        if not lines and self.world_size != world_size:
            product = " x ".join(f"{axis} {size}" for axis, size in self.sizes.items())
            lines.append(
                f"the mesh {product} is for {self.world_size} processes, and this job has {world_size}; change a size,"
                f" or start {self.world_size} processes"
            )
        return lines

    def build(self, device_type: str) -> DeviceMesh:
        """torch's mesh, with the names of `Axis`. Collective: every process must call."""
        from torch.distributed.device_mesh import init_device_mesh

        return init_device_mesh(
            device_type, (self.replicate, self.shard, self.tensor), mesh_dim_names=tuple(map(str, Axis))
        )
