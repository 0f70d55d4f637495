"""A checkpoint as files: from what has a state to a folder, and back."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from accel_amp import AcceleratedOptimizer
from accel_checkpoint import (
    CheckpointError,
    FileDigest,
    Manifest,
    StagedCheckpoint,
    TensorFile,
    decode,
    encode,
    parallel_copy,
    plan_shards,
    serialize,
    size_in_bytes,
    verify,
)
from accel_checkpoint.save import INDEX
from accel_checkpoint.tensor_file import ALIASES, find_unsupported
from torch import nn

from accel.checkpoint.stateful_item import StatefulItem

#: bytes of weights that are not trained from which on they have files of their own
APART = 1 << 20


@dataclass
class CheckpointContents:
    """What is to be written: tensors by file, small texts, and the rest of the state as JSON has it."""

    files: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, dict[str, str]] = field(default_factory=dict)
    #: files of weights that are not trained: maybe they are in the checkpoint before, as they are
    fixed: set[str] = field(default_factory=set)
    items: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add_model(self, key: str, model: nn.Module, state: Mapping[str, Any], max_shard_size: int | str) -> None:
        """The weights under their own names, in a file or in shards with an index."""
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
        if len(plan.files) > 1:
            index = {"metadata": {"total_size": plan.total_bytes}, "weight_map": weight_map}
            self.texts[f"{key}.safetensors{INDEX}"] = json.dumps(index, indent=2, sort_keys=True) + "\n"
        self.items[key] = {"kind": "model", "files": list(plan.files), "state": extra}

    def add(self, item: StatefulItem) -> None:
        """The state of one thing."""
        try:
            state = item.state()
        except Exception as error:  # noqa: BLE001 - whatever the user's own code raises is told to all
            self.problems.append(f"the state_dict of {item.name} failed: {type(error).__name__}: {error}")
            return
        encoded = self._encoded(item.name, state, item.file)
        self.items[item.name] = {"kind": item.kind, "file": item.file, "state": encoded}

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


def write(
    stage: StagedCheckpoint,
    contents: CheckpointContents,
    about: dict[str, Any],
    ranks: list[Any],
    before: tuple[Path, Manifest] | None,
) -> Manifest:
    """Writes everything into the stage, and the manifest last."""
    for name, tensors in contents.files.items():
        if name not in contents.fixed or before is None or not _linked(stage, name, contents, before):
            stage.write_tensors(name, tensors, contents.metadata.get(name))
    for name, text in contents.texts.items():
        stage.write(name, [text.encode()])
    stage.adopt()
    manifest = Manifest(about, stage.files, contents.items, ranks)
    stage.seal(manifest)
    return manifest


def _linked(stage: StagedCheckpoint, name: str, contents: CheckpointContents, before: tuple[Path, Manifest]) -> bool:
    """Whether the checkpoint before has the same file, and the file could be linked."""
    folder, manifest = before
    known = manifest.files.get(name)
    content = serialize(contents.files[name], contents.metadata.get(name))
    return known is not None and FileDigest.of(content) == known and stage.link(name, folder / name, known)


def about_this_run(world: int, optimizers: Iterable[AcceleratedOptimizer]) -> dict[str, Any]:
    """What wrote a checkpoint, and where it stood."""
    return {
        "accel": _version(),
        "torch": torch.__version__,
        "python": ".".join(map(str, sys.version_info[:3])),
        "world": world,
        "threads": torch.get_num_threads(),
        "steps": max((optimizer.steps for optimizer in optimizers), default=0),
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _version() -> str:
    try:
        return version("accel")
    except PackageNotFoundError:
        return "from a source folder (not installed)"


class LoadedCheckpoint:
    """A checkpoint that was verified, as what can be loaded from it."""

    def __init__(self, folder: Path, manifest: Manifest, read: Mapping[str, dict[str, torch.Tensor]]) -> None:
        self.folder, self.manifest = folder, manifest
        self._open: dict[str, TensorFile] = {}
        #: the tensors of files in memory of their own
        self._read = dict(read)

    def state(self, name: str) -> Any:
        """The state of one thing."""
        entry = self.manifest.items[name]
        file = entry["file"]
        if file not in self._read:
            self._read[file] = self._again(file) if file in self.manifest.files else {}
        return decode(entry["state"], self._read[file].__getitem__)

    def _again(self, file: str) -> dict[str, torch.Tensor]:
        result = verify(self.folder, self.manifest, [file], keep=[file])
        if result.problems:
            raise CheckpointError("; ".join(result.problems))
        return result.tensors.get(file, {})

    def outline(self, name: str) -> Any:
        """The state of one thing, with tensors of which only shape and dtype are known."""
        entry = self.manifest.items[name]

        def empty(path: str) -> torch.Tensor:
            shape, dtype = self._file(entry["file"]).shape_and_dtype(path)
            return torch.empty(shape, dtype=dtype, device="meta")

        return decode(entry["state"], empty)

    def problems(self, item: StatefulItem) -> list[str]:
        """Why a thing cannot go on from the state that was saved."""
        return item.problems(self.outline(item.name))

    def model_problems(self, key: str, model: nn.Module) -> list[str]:
        """Why a model cannot have the weights that were saved."""
        state = model.state_dict(keep_vars=True)
        weights = self._weights(key)
        stored_names = dict.fromkeys([*weights, *decode(self.manifest.items[key]["state"])])
        lines = [f"{name} is not in the checkpoint" for name in state if name not in stored_names]
        lines += [f"{name} is in the checkpoint, and not in the model" for name in stored_names if name not in state]
        for name, value in state.items():
            # what `set_extra_state` takes may be anything
            if name not in weights or not isinstance(value, torch.Tensor) or name.rpartition(".")[2] == "_extra_state":
                continue
            file, stored = weights[name]
            here, there = (tuple(value.shape), value.dtype), file.shape_and_dtype(stored)
            if here != there:
                lines.append(f"{name} is {_words(*there)} in the checkpoint, and {_words(*here)} in the model")
        return lines[:10] + ([f"and {len(lines) - 10} more"] if len(lines) > 10 else [])

    def load_model(self, key: str, model: nn.Module) -> None:
        """Puts the weights into the model."""
        extra = decode(self.manifest.items[key]["state"])
        weights = {name: file[stored] for name, (file, stored) in self._weights(key).items()}
        state = model.state_dict(keep_vars=True)
        if extra or not _is_plain(model) or {tensor.device.type for tensor in state.values()} - {"cpu"}:
            model.load_state_dict({**weights, **extra})
        else:  # what that does, with several cores
            parallel_copy({_place(tensor): (tensor, weights[name]) for name, tensor in state.items()}.values())

    def _weights(self, key: str) -> dict[str, tuple[TensorFile, str]]:
        """The file of each weight, and the name under which it is stored there."""
        weights: dict[str, tuple[TensorFile, str]] = {}
        for name in self.manifest.items[key]["files"]:
            file = self._file(name)
            weights |= {weight: (file, stored) for weight, stored in file.stored_names().items()}
        return weights

    def _file(self, name: str) -> TensorFile:
        if name not in self._open:
            if name not in self.manifest.files:
                raise CheckpointError(f"the manifest of {self.folder} needs {name}, and does not name it")
            self._open[name] = TensorFile(self.folder / name)
        return self._open[name]


def item_problems(
    checkpoint: LoadedCheckpoint, wanted: Sequence[StatefulItem], models: Mapping[str, nn.Module]
) -> list[str]:
    """Why what is here cannot go on from a checkpoint; nothing is changed to find out."""
    saved = checkpoint.manifest.items
    here = [*models, *(item.name for item in wanted)]
    lines = []
    missing, left = [name for name in here if name not in saved], [name for name in saved if name not in here]
    if missing or left:
        lines.append(f"registered here: {_listed(here)}; in the checkpoint: {_listed(saved)}")
        lines += [f"{name} is not in the checkpoint" for name in missing]
        lines += [f"{name} is in the checkpoint, and was not prepared or registered here" for name in left]
    for name, model in models.items():
        if name in saved:
            lines += [f"{name}: {line}" for line in _lines(partial(checkpoint.model_problems, name, model))]
    for item in wanted:
        if item.name in saved:
            kind = saved[item.name].get("kind")
            if kind is None:
                lines.append(f"{item.name} is damaged: the manifest does not say its class")
            elif kind != item.kind:
                lines.append(f"{item.name} was of the class {kind}, and is of {item.kind}")
            else:
                lines += [f"{item.name}: {line}" for line in _lines(partial(checkpoint.problems, item))]
    return lines


def _lines(look: Callable[[], list[str]]) -> list[str]:
    try:
        return look()
    except (CheckpointError, KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        return [str(error) if isinstance(error, CheckpointError) else f"damaged: {type(error).__name__}: {error}"]


def _place(tensor: torch.Tensor) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Where a tensor is; tied weights are in one place."""
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride()


def _is_plain(model: nn.Module) -> bool:
    """Whether all that `load_state_dict` does with a model is to copy what has the same name."""
    return all(
        type(module)._load_from_state_dict is nn.Module._load_from_state_dict
        and type(module).load_state_dict is nn.Module.load_state_dict
        and type(module).get_extra_state is nn.Module.get_extra_state
        and not (module._load_state_dict_pre_hooks or module._load_state_dict_post_hooks or module._state_dict_hooks)
        for module in model.modules()
    )


def _words(shape: tuple[int, ...], dtype: torch.dtype | str) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"
