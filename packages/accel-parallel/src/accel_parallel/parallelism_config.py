"""Declare how many processes share data, parameters and layers, by the names that scripts use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from accel_state.environ import AS_ACCELERATE, flag, process_environ
from accel_state.mesh import MeshSpec

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

SIZES = ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "sp_size")
#: the axes in the order of the ranks, the outermost first
_AXES = ("dp_replicate", "dp_shard", "cp", "sp", "tp")


#: words for how sequences are divided, of which only what is here may be asked
BACKENDS = ("cp_backend", "sp_backend")
#: what Accelerate's files say of sequences, besides sizes and backends, that follows by itself here
_BY_ITSELF = ("cp_comm_strategy", "sp_seq_length", "sp_seq_length_is_variable")


def _number(word: str) -> Any:
    return int(word) if word.isdecimal() else word


def _word(variable: str) -> str | None:
    environ = process_environ()
    return (environ.get(variable) or None) if flag(environ, AS_ACCELERATE) else None


def _size(variable: str) -> Any:
    """Return a size of which a script says nothing: that of Accelerate's variable for it, or 1."""
    environ = process_environ()
    return _number(environ.get(variable) or "1") if flag(environ, AS_ACCELERATE) else 1


@dataclass(frozen=True, slots=True)
class ParallelismConfig:
    """The sizes of the axes of parallelism, whose product is the number of processes.

    With a plan and no sizes, those of the launcher count. A size that is left out is 1, or in a program for Accelerate
    that of its variable, such as PARALLELISM_CONFIG_TP_SIZE.

    Args:
        dp_replicate_size: Number of whole copies of the model.
        dp_shard_size: Number of ranks over which each copy is sharded.
        tp_size: Number of ranks over which each layer is divided.
        cp_size: Number of ranks that hold parts of each sequence, and pass keys and values around.
        sp_size: Number of ranks that hold parts of each sequence, and exchange them for heads inside of attention.
        tp_plan: Layers to divide: patterns of names with the names of styles ("colwise", "rowwise"), or torch's own
            styles. By default the plan of the model itself.
        cp_backend: "torch", or nothing, which means the same.
        sp_backend: "torch", or nothing, which means the same.
    """

    dp_replicate_size: int = field(default_factory=partial(_size, "PARALLELISM_CONFIG_DP_REPLICATE_SIZE"))
    dp_shard_size: int = field(default_factory=partial(_size, "PARALLELISM_CONFIG_DP_SHARD_SIZE"))
    tp_size: int = field(default_factory=partial(_size, "PARALLELISM_CONFIG_TP_SIZE"))
    cp_size: int = field(default_factory=partial(_size, "PARALLELISM_CONFIG_CP_SIZE"))
    sp_size: int = field(default_factory=partial(_size, "PARALLELISM_CONFIG_SP_SIZE"))
    tp_plan: Mapping[str, Any] | None = field(default=None, hash=False)
    cp_backend: str | None = field(default_factory=partial(_word, "PARALLELISM_CONFIG_CP_BACKEND"))
    sp_backend: str | None = field(default_factory=partial(_word, "PARALLELISM_CONFIG_SP_BACKEND"))

    @classmethod
    def from_words(cls, words: Mapping[str, str]) -> ParallelismConfig:
        """Return the config for the entries of `parallelism_config` in a config file. `problems` has the wrong ones."""
        kept = {name: word for name, word in words.items() if name not in _BY_ITSELF}
        backends = {name: kept.pop(name, None) for name in BACKENDS}
        if kept.pop("sp_attn_implementation", "sdpa") != "sdpa":
            backends["sp_backend"] = f"torch with {words['sp_attn_implementation']}"
        return cls(**{**dict.fromkeys(SIZES, 1), **backends, **{name: _number(word) for name, word in kept.items()}})

    @classmethod
    def of(cls, model: nn.Module) -> ParallelismConfig:
        """Return the sizes by which a model is divided that arrives divided, as Transformers has loaded it (`tp_plan`).

        Args:
            model: The model, as `from_pretrained` returns it.

        Raises:
            ArrivalError: The model is whole.
        """
        from accel_parallel.stages.arrival import sizes_of

        sizes: dict[str, Any] = {**dict.fromkeys(SIZES, 1), **sizes_of(model)}
        return cls(**sizes)

    def problems(self) -> list[str]:
        """List what is wrong with the sizes."""
        sizes = {name: getattr(self, name) for name in SIZES}
        lines = [
            f"{name}={size!r}: expected a whole number of at least 1"
            for name, size in sizes.items()
            if type(size) is not int or size < 1
        ]
        for name in BACKENDS:
            backend, size = getattr(self, name), sizes[name.replace("backend", "size")]
            if backend not in (None, "torch") and size != 1:
                lines.append(f"{name}={backend!r}: torch divides sequences here, without DeepSpeed; leave it out")
        if not lines and self.tp_size > 1 and self.cp_size * self.sp_size > 1:
            lines.append(
                f"tp_size={self.tp_size} with sp_size={self.sp_size}, cp_size={self.cp_size}: layers and sequences are"
                " not divided together; leave out tp_size, and shard the model by dp_shard_size"
            )
        return lines

    @property
    def mesh(self) -> MeshSpec:
        """The sizes as a mesh."""
        # ranks that share a sequence hold parts of the model, or copies if nothing else is sharded
        shared, sharded = self.cp_size * self.sp_size, self.dp_shard_size > 1
        return MeshSpec(
            replicate=self.dp_replicate_size * (1 if sharded else shared),
            shard=self.dp_shard_size * (shared if sharded else 1),
            tensor=self.tp_size,
            context=self.cp_size,
            sequence=self.sp_size,
        )

    @property
    def counted(self) -> ParallelismConfig:
        """The sizes for a program of Accelerate, which divides by them what it counts.

        Processes that share sequences are given the same batches, whole, as those of `tp_size` are. Nothing else is to
        be done for them, as would be for Accelerate's own ways to divide sequences.
        """
        shared = self.cp_size * self.sp_size
        return self if shared == 1 else replace(self, tp_size=self.tp_size * shared, cp_size=1, sp_size=1)

    @property
    def cp_enabled(self) -> bool:
        """True if sequences are divided by `cp_size`."""
        return self.cp_size > 1

    @property
    def sp_enabled(self) -> bool:
        """True if sequences are divided by `sp_size`."""
        return self.sp_size > 1

    @property
    def total_size(self) -> int:
        """The number of processes that it is for."""
        return self.mesh.world_size

    @property
    def dp_dim_names(self) -> list[str]:
        """The axes above 1 whose ranks train on samples of their own."""
        return self._above_one("dp_replicate", "dp_shard")

    @property
    def dp_shard_cp_dim_names(self) -> list[str]:
        """The axes above 1 whose ranks share the parameters of a copy."""
        return self._above_one("dp_shard", "cp")

    @property
    def dp_cp_dim_names(self) -> list[str]:
        """The axes above 1 over which a loss is averaged."""
        return self._above_one("dp_replicate", "dp_shard", "cp")

    def _above_one(self, *axes: str) -> list[str]:
        return [axis for axis in axes if getattr(self, f"{axis}_size") > 1]

    def _get_mesh(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        names = self._above_one(*_AXES)
        return tuple(names), tuple(getattr(self, f"{name}_size") for name in names)

    def build_device_mesh(self, device_type: str) -> DeviceMesh | None:
        """Return torch's mesh of the axes above 1, with the joint axes dp, dp_shard_cp and dp_cp, or None without axes.

        Collective:
            Every process must call.
        """
        names, shape = self._get_mesh()
        if not names:
            return None
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh(device_type, shape, mesh_dim_names=names)
        for joint in ("dp", "dp_shard_cp", "dp_cp"):
            if axes := getattr(self, f"{joint}_dim_names"):
                mesh[axes]._flatten(joint)
        return mesh
