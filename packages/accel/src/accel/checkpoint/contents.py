"""The content of a checkpoint, from the objects that have a state."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import torch
from accel_amp import AcceleratedOptimizer
from accel_checkpoint import CheckpointError, encode, plan_shards, size_in_bytes
from accel_checkpoint.piece_index import PIECE_INDEX, PieceIndex, index_text
from accel_checkpoint.safetensors_header import ALIASES
from accel_checkpoint.save import INDEX
from accel_checkpoint.tensor_file import find_unsupported
from accel_state.environ import MEMORY_CHECKPOINTS, process_environ
from accel_state.mesh import MeshSpec
from torch import nn

import accel
from accel.checkpoint.parts import has_parts, index_of, layout, own_part, part_name
from accel.checkpoint.registry import StatefulItem

#: bytes of weights that are not trained from which on they have files of their own
APART = 1 << 20


@dataclass
class CheckpointContents:
    """The content of a checkpoint before it is written.

    Args:
        files: Tensors, by file and name.
        texts: Small texts, by file.
        metadata: The metadata of each file of tensors.
        fixed: The files of weights that are not trained. They may be in the checkpoint before, as they are.
        items: The rest of the state, as JSON has it.
        parts: The files with the parts of all ranks, by the file that they make up.
        problems: Why it cannot be written, in words.
    """

    files: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, dict[str, str]] = field(default_factory=dict)
    fixed: set[str] = field(default_factory=set)
    items: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, list[str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        """The bytes of all tensors."""
        return sum(tensor.nbytes for tensors in self.files.values() for tensor in tensors.values())

    def add_model(self, key: str, model: nn.Module, state: Mapping[str, Any], max_shard_size: int | str) -> None:
        """Add the weights of a model under their own names, in a file or in shards with an index.

        Args:
            key: The name of the model.
            model: The model.
            state: Its state dict.
            max_shard_size: The largest file.
        """
        tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
        unsupported = find_unsupported(tensors)
        if unsupported:
            self.problems.append(f"{key}: safetensors cannot hold {'; '.join(unsupported)}")
            return
        extra = self._encoded(key, {name: value for name, value in state.items() if name not in tensors})
        parameters = model.named_parameters(remove_duplicate=False)
        fixed = {name for name, parameter in parameters if not parameter.requires_grad}
        size = sum(tensors[name].nbytes for name in fixed if name in tensors)
        apart = fixed if size >= APART and not fixed.issuperset(tensors) else set[str]()
        plan = plan_shards(
            tensors, stem=key, suffix=".safetensors", max_bytes=size_in_bytes(max_shard_size), apart=apart
        )
        weight_map: dict[str, str] = {}
        for file, shard in plan.files.items():
            aliases = plan.aliases_in(file)
            self.files[file] = shard
            self.metadata[file] = {ALIASES: json.dumps(aliases)} if aliases else {}
            weight_map |= dict.fromkeys([*shard, *aliases], file)
            if shard and set(shard) <= fixed:
                self.fixed.add(file)
        if len(plan.files) > 1 and not has_parts(tensors):
            index = {"metadata": {"total_size": plan.total_bytes}, "weight_map": weight_map}
            self.texts[f"{key}.safetensors{INDEX}"] = json.dumps(index, indent=2, sort_keys=True) + "\n"
        self.items[key] = {"kind": "model", "files": list(plan.files), "state": extra}

    def add(self, item: StatefulItem) -> None:
        """Add the state of an object that is no model."""
        try:
            state = item.state()
        except Exception as error:  # noqa: BLE001 - whatever the user's own code raises is told to all
            self.problems.append(f"the state_dict of {item.name} failed: {type(error).__name__}: {error}")
            return
        encoded = self._encoded(item.name, state, item.file)
        self.items[item.name] = {"kind": item.kind, "file": item.file, "state": encoded}

    def keep_own(self, mesh: MeshSpec, rank: int, *, writer: bool) -> None:
        """Keep in `files` what this rank writes: its part of each file of divided tensors.

        Args:
            mesh: How ranks are arranged.
            rank: This rank.
            writer: Whether it writes the other files too.
        """
        files, self.files = self.files, {}
        indexes: dict[str, PieceIndex] = {}
        for file, tensors in files.items():
            if not has_parts(tensors):
                self.files |= {file: tensors} if writer else {}
                continue
            try:
                part, metadata = own_part(tensors, mesh, rank)
            except CheckpointError as error:
                self.problems.append(f"{file}: {error}")
                continue
            aliases = json.loads(self.metadata.get(file, {}).get(ALIASES, "{}"))
            if writer:
                indexes[file] = index_of(tensors, aliases, mesh)
            aliases = {alias: name for alias, name in aliases.items() if name in part}
            self.parts[file] = [part_name(file, other) for other in range(mesh.world_size)]
            own = self.parts[file][rank]
            self.files[own] = part
            self.metadata[own] = metadata | ({ALIASES: json.dumps(aliases)} if aliases else {})
            self.fixed |= {own} if file in self.fixed else set()
        if indexes:
            self.texts[PIECE_INDEX] = index_text(indexes)

    def _encoded(self, name: str, state: Any, file: str | None = None) -> Any:
        tensors = self.files.get(file, {}) if file is not None else {}
        try:
            # under its own name; two things of a file that meet all the same are told apart
            encoded = encode({name: state}, tensors)[name]
        except CheckpointError as error:
            self.problems.append(f"{name}: {error}")
            return None
        if tensors and file is None:
            self.problems.append(f"{name}: tensors inside of extra state: {', '.join(tensors)}")
        elif tensors and file is not None:
            self.files[file] = tensors
        return encoded


def about_this_run(mesh: MeshSpec, world: int, optimizers: Iterable[AcceleratedOptimizer]) -> dict[str, Any]:
    """Return what writes a checkpoint, how its processes are arranged, and how many steps were taken.

    Args:
        mesh: How ranks are arranged.
        world: The number of processes.
        optimizers: The prepared optimizers.
    """
    return {
        "accel": accel.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "world": world,
        "mesh": layout(mesh),
        "threads": torch.get_num_threads(),
        "steps": max((optimizer.steps for optimizer in optimizers), default=0),
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        # the launcher that has one is another after each launch, and the same after each start of its processes
        "memory": process_environ().get(MEMORY_CHECKPOINTS),
    }
