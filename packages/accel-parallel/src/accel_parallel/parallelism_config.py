"""Declare how many processes share data, parameters and layers, by the names that scripts use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from accel_state.mesh import MeshSpec

SIZES = ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "sp_size")


@dataclass(frozen=True, slots=True)
class ParallelismConfig:
    """The sizes of the axes of parallelism, whose product is the number of processes.

    With a plan and no sizes, those of the launcher count.

    Args:
        dp_replicate_size: Number of whole copies of the model.
        dp_shard_size: Number of ranks over which each copy is sharded.
        tp_size: Number of ranks over which each layer is divided.
        cp_size: 1, as sequences are not divided.
        sp_size: 1, as sequences are not divided.
        tp_plan: Layers to divide: patterns of names with the names of styles ("colwise", "rowwise"), or torch's own
            styles. By default the plan of the model itself.
    """

    dp_replicate_size: int = 1
    dp_shard_size: int = 1
    tp_size: int = 1
    cp_size: int = 1
    sp_size: int = 1
    tp_plan: Mapping[str, Any] | None = field(default=None, hash=False)

    @classmethod
    def from_words(cls, words: Mapping[str, str]) -> ParallelismConfig:
        """Return the config for the entries of `parallelism_config` in a config file. `problems` has the wrong ones."""
        return cls(**{name: int(word) if word.isdecimal() else word for name, word in words.items()})  # type: ignore[arg-type]

    def problems(self) -> list[str]:
        """List what is wrong with the sizes."""
        sizes = {name: getattr(self, name) for name in SIZES}
        lines = [
            f"{name}={size!r}: expected a whole number of at least 1"
            for name, size in sizes.items()
            if type(size) is not int or size < 1
        ]
        for name in ("cp_size", "sp_size"):
            if type(sizes[name]) is int and sizes[name] > 1:
                lines.append(f"{name}={sizes[name]}: sequences cannot be divided over ranks yet; leave it out")
        return lines

    @property
    def mesh(self) -> MeshSpec:
        """The sizes as a mesh."""
        return MeshSpec(replicate=self.dp_replicate_size, shard=self.dp_shard_size, tensor=self.tp_size)

    @property
    def total_size(self) -> int:
        """The number of processes that it is for."""
        return self.mesh.world_size
