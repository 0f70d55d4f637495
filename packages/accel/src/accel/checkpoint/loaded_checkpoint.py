"""A checkpoint on the disk, as what can be loaded from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, final

import torch
from accel_checkpoint import CheckpointError, Manifest, TensorFile, decode, parallel_copy, verify
from accel_checkpoint.piece_index import PieceIndex, read_indexes
from accel_checkpoint.pieces import blocks_of, is_distributed
from accel_checkpoint.stored_tensors import IndexedParts, StoredTensors
from torch import nn

from accel.checkpoint.parts import has_parts
from accel.checkpoint.reading_lock import ReadingLock
from accel.checkpoint.registry import StatefulItem

#: where the hooks of sharded modules are from, which refuse nothing that is stored as they hold it
SHARDING = ("torch.", "accel_parallel.")


@final
class LoadedCheckpoint:
    """A checkpoint that was verified, as what can be loaded from it.

    Args:
        lock: The lock on its folder.
        manifest: Its manifest.
        read: Tensors that are in memory already, by file and name.
    """

    def __init__(self, lock: ReadingLock, manifest: Manifest, read: Mapping[str, dict[str, torch.Tensor]]) -> None:
        self.folder, self.manifest, self.was_moved = lock.folder, manifest, lock.was_moved
        self._open: dict[str, StoredTensors] = {}
        self._indexes: dict[str, PieceIndex] | None = None
        absent = manifest.about.get("absent")
        #: what the main process could not write, in a save that no other process took part in
        self.absent = [str(name) for name in absent] if isinstance(absent, list) else []
        #: the tensors of files in memory of their own
        self._read = dict(read)

    def without_absent(self, items: Sequence[StatefulItem]) -> list[StatefulItem]:
        """Return the objects whose state the main process could write."""
        return [item for item in items if item.name not in self.absent]

    def state(self, item: StatefulItem) -> Any:
        """Return the state of an object, with tensors divided as the tensors of the object are."""
        entry = self.manifest.items[item.name]
        file, layouts = entry["file"], item.layouts()
        if not layouts and file not in self.manifest.parts:
            if file not in self._read:
                self._read[file] = self._again(file) if file in self.manifest.files else {}
            return decode(entry["state"], self._read[file].__getitem__)

        def read(path: str) -> torch.Tensor:
            # the tensors of an entry of an optimizer are divided as its parameter is
            layout = layouts.get(path, layouts.get(path.rpartition(".")[0]))
            tensor = self._stored([file]).read_like(path, layout)
            return tensor if is_distributed(tensor) else tensor.clone()

        return decode(entry["state"], read)

    def _again(self, file: str) -> dict[str, torch.Tensor]:
        result = verify(self.folder, self.manifest, [file], keep=[file])
        if result.problems:
            raise CheckpointError("; ".join(result.problems))
        return result.tensors.get(file, {})

    def outline(self, name: str) -> Any:
        """Return the state of an object, with tensors of which only shape and dtype are known."""
        entry = self.manifest.items[name]

        def empty(path: str) -> torch.Tensor:
            shape, dtype = self._stored([entry["file"]]).shape_and_dtype(path)
            return torch.empty(shape, dtype=dtype, device="meta")

        return decode(entry["state"], empty)

    def problems(self, item: StatefulItem) -> list[str]:
        """Return why an object cannot resume from the state that was saved."""
        return item.problems(self.outline(item.name))

    def model_problems(self, key: str, model: nn.Module) -> list[str]:
        """Return why a model cannot have the weights that were saved."""
        state = model.state_dict(keep_vars=True)
        weights = self._weights(key)
        stored_names = dict.fromkeys([*weights.names, *decode(self.manifest.items[key]["state"])])
        lines = [f"{name} is not in the checkpoint" for name in state if name not in stored_names]
        lines += [f"{name} is in the checkpoint, and not in the model" for name in stored_names if name not in state]
        for name, value in state.items():
            # what `set_extra_state` takes may be anything
            if (
                name not in weights.names
                or not isinstance(value, torch.Tensor)
                or name.rpartition(".")[2] == "_extra_state"
            ):
                continue
            here, there = (tuple(value.shape), value.dtype), weights.shape_and_dtype(name)
            if here != there:
                lines.append(f"{name} is {_words(*there)} in the checkpoint, and {_words(*here)} in the model")
            else:
                for box, _ in blocks_of(value):
                    list(weights.pieces(name, box))  # opened now: the damaged are refused before anything changes
        return lines[:10] + ([f"and {len(lines) - 10} more"] if len(lines) > 10 else [])

    def load_model(self, key: str, model: nn.Module) -> None:
        """Put the weights into the model, of which each process reads what it holds."""
        extra, weights = decode(self.manifest.items[key]["state"]), self._weights(key)
        state = model.state_dict(keep_vars=True)
        plain = not extra and _is_plain(model)
        on_cpu = plain and {tensor.device.type for tensor in state.values()} <= {"cpu"}
        if not plain or not (on_cpu or has_parts(state)):
            loaded = {name: weights.read_like(name, state.get(name)) for name in weights.names}
            model.load_state_dict({**loaded, **extra})
            return
        tensors = {_place(name, tensor): (name, tensor) for name, tensor in state.items()}
        pairs = [pair for name, tensor in tensors.values() for pair in weights.copies(name, tensor)]
        if on_cpu:
            parallel_copy(pairs)
        else:
            for part, stored in pairs:
                part.copy_(stored)

    def _weights(self, key: str) -> StoredTensors:
        return self._stored(self.manifest.items[key]["files"])

    def _stored(self, names: Sequence[str]) -> StoredTensors:
        """Return the tensors of these files, or of the parts that make them up."""
        place = "/".join(names)
        if place not in self._open:
            parts = self.manifest.parts
            if self._indexes is None:
                self._indexes = read_indexes(self.folder, self.manifest)
            indexed = [
                IndexedParts(self._indexes[name], [self.folder / part for part in parts[name]])
                for name in names
                if name in self._indexes
            ]
            files = [file for name in names if name not in self._indexes for file in parts.get(name, [name])]
            missing = [file for file in files if file not in self.manifest.files]
            if missing:
                raise CheckpointError(f"the manifest of {self.folder} needs {missing[0]}, and does not name it")
            self._open[place] = StoredTensors([TensorFile(self.folder / file) for file in files], indexed)
        return self._open[place]


def item_problems(
    checkpoint: LoadedCheckpoint, wanted: Sequence[StatefulItem], models: Mapping[str, nn.Module]
) -> list[str]:
    """Return why what is here cannot resume from a checkpoint, without a change to find out.

    Args:
        checkpoint: The checkpoint.
        wanted: What has a state besides models.
        models: The models, by name.
    """
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


def _place(name: str, tensor: torch.Tensor) -> tuple[object, ...]:
    """Return where a tensor is: tied weights are in one place."""
    if is_distributed(tensor):  # parts may be empty, and have no address then
        return (id(tensor),)
    return tensor.data_ptr() or name, tuple(tensor.shape), tensor.stride()


def _is_plain(model: nn.Module) -> bool:
    """Return True if all that `load_state_dict` does with a model is to copy what has the same name."""
    return all(
        type(module)._load_from_state_dict is nn.Module._load_from_state_dict
        and type(module).load_state_dict is nn.Module.load_state_dict
        and type(module).get_extra_state is nn.Module.get_extra_state
        and not (foreign_hooks(module) or module._state_dict_hooks)
        for module in model.modules()
    )


def foreign_hooks(module: nn.Module) -> list[Callable[..., Any]]:
    """Return the hooks of `load_state_dict` that are neither torch's own nor those of a sharded module.

    A sharded module has one of torch's, which frees whole weights, and one of accel's, which divides them.
    """
    hooks = [*module._load_state_dict_pre_hooks.values(), *module._load_state_dict_post_hooks.values()]
    functions = [getattr(hook, "hook", hook) for hook in hooks]
    return [function for function in functions if not getattr(function, "__module__", "").startswith(SHARDING)]


def _words(shape: tuple[int, ...], dtype: torch.dtype | str) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"
