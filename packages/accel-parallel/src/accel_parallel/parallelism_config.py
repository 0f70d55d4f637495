"""How many processes share data, parameters and layers, by the names that scripts use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from accel_state.mesh import MeshSpec

SIZES = ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "sp_size")


@dataclass(frozen=True, slots=True)
class ParallelismConfig:
    """The sizes of the axes of parallelism; their product is the number of processes.

    `dp_replicate_size` whole copies are each sharded over `dp_shard_size` ranks, and each layer over `tp_size`.
    `tp_plan` says which layers: patterns of names with the names of styles ("colwise", "rowwise"), or torch's own
    styles; None is the plan of the model itself. With a plan and no sizes, those of the launcher count.
    """

    dp_replicate_size: int = 1
    dp_shard_size: int = 1
    tp_size: int = 1
    cp_size: int = 1
    sp_size: int = 1
    tp_plan: Mapping[str, Any] | None = field(default=None, hash=False)

    @classmethod
    def from_words(cls, words: Mapping[str, str]) -> ParallelismConfig:
        """The config for the entries of `parallelism_config` in a config file; wrong ones are among its problems."""
        return cls(**{name: int(word) if word.isdecimal() else word for name, word in words.items()})  # type: ignore[arg-type]

    def problems(self) -> list[str]:
        """What is wrong with the sizes, in words."""
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
        """How many processes it is for."""
        return self.mesh.world_size
