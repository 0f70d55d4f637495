"""Checkpoints that Hugging Face Accelerate wrote, read without running code from them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from accel_checkpoint import CheckpointError, weight_files
from accel_checkpoint.load import read_plain, read_shapes, read_tensors
from torch import nn

from accel.checkpoint.stateful_item import key
from accel.preparation import Preparer

logger = logging.getLogger("accel")

#: what each of its processes writes, and nobody else
MARK = "random_states_0.pkl"


def is_accelerates(folder: Path) -> bool:
    """Whether a folder looks like what Accelerate's save_state writes."""
    return (folder / MARK).is_file()


class AccelerateCheckpoint:
    """A checkpoint of Accelerate, as what can be loaded from it: everything is read and compared first."""

    def __init__(
        self, folder: Path, models: Mapping[str, nn.Module], preparer: Preparer, scaler: Any, objects: Sequence[Any]
    ) -> None:
        self.folder, self.problems = folder, list[str]()
        self._models = [(one, self._weights(place, one)) for place, one in enumerate(models.values())]
        optimizers = [one.optimizer for one in preparer.optimizers]
        self._optimizers = [(one, self._optimizer(place, one)) for place, one in enumerate(optimizers)]
        self._others = [
            *((one, self._read(f"{key('scheduler', place)}.bin")) for place, one in enumerate(preparer.schedulers)),
            *((one, self._read(f"custom_checkpoint_{place}.pkl")) for place, one in enumerate(objects)),
        ]
        if scaler is not None:
            self._others.append((scaler, self._read("scaler.pt")))
        found = len(list(folder.glob("custom_checkpoint_*.pkl")))
        if found != len(objects):
            self.problems.append(f"{found} registered objects were saved, and {len(objects)} are registered here")

    def load(self) -> None:
        """Loads everything; to be called when there are no problems."""
        for model, path in self._models:
            if path is not None:
                with torch.no_grad():
                    state = model.state_dict(keep_vars=True)
                    for file in weight_files(path):
                        for name, tensor in read_tensors(file):
                            state[_bare(name, state)].copy_(tensor)
        for one, state in (*self._optimizers, *self._others):
            one.load_state_dict(state)

    @property
    def left(self) -> str:
        """What cannot be gone on from, in words."""
        return (
            f"{self.folder} was written by Accelerate: models, optimizers, schedulers and registered objects go on from"
            " it; random numbers, which it pickles, and places in loaders do not. Leave out what an epoch has seen with"
            " skip_first_batches"
        )

    def _weights(self, place: int, model: nn.Module) -> Path | None:
        for stem, suffix in (("model", ".safetensors"), ("pytorch_model", ".bin")):
            for ending in ("", ".index.json"):
                path = self.folder / f"{key(stem, place)}{suffix}{ending}"
                if path.is_file():
                    self._compare(path, model)
                    return path
        self.problems.append(f"there are no weights of model {place}: {key('model', place)}.safetensors")
        return None

    def _compare(self, path: Path, model: nn.Module) -> None:
        try:
            found: dict[str, tuple[int, ...]] = {}
            known = model.state_dict(keep_vars=True)
            for file in weight_files(path):
                found |= {_bare(name, known): shape for name, shape in read_shapes(file).items()}
        except CheckpointError as error:
            self.problems.append(str(error))
            return
        state = model.state_dict(keep_vars=True)
        state = {name: one for name, one in state.items() if isinstance(one, torch.Tensor)}
        mine = {name: tuple(one.shape) for name, one in state.items()}
        wrong = [name for name in found if name not in mine or mine[name] != found[name]]
        given = {state[name].data_ptr() for name in found if name in state}  # tied weights are there once
        wrong += [name for name, one in state.items() if name not in found and one.data_ptr() not in given]
        if wrong:
            self.problems.append(f"{path.name} does not fit the model: {', '.join(wrong[:5])}")

    def _optimizer(self, place: int, optimizer: torch.optim.Optimizer) -> Any:
        state = self._read(f"{key('optimizer', place)}.bin")
        if state is None:
            return None
        if not {"state", "param_groups"} <= set(state):
            self.problems.append(f"{key('optimizer', place)}.bin holds no state of an optimizer")
            return None
        theirs = [len(group["params"]) for group in state["param_groups"]]
        mine = [len(group["params"]) for group in optimizer.param_groups]
        if theirs != mine:
            self.problems.append(f"optimizer {place} had groups of {theirs} parameters, and has {mine}")
            return None
        numbers = [number for group in state["param_groups"] for number in group["params"]]
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        wrong = [
            f"{name} of parameter {number}"
            for number, parameter in zip(numbers, parameters, strict=True)
            for name, value in state["state"].get(number, {}).items()
            if isinstance(value, torch.Tensor) and value.ndim == parameter.ndim > 0 and value.shape != parameter.shape
        ]
        if wrong:
            self.problems.append(f"optimizer {place}: another shape than the parameter: {', '.join(wrong[:5])}")
        return state

    def _read(self, name: str) -> Any:
        path = self.folder / name
        if not path.is_file():
            self.problems.append(f"{name} is missing")
            return None
        try:
            found = read_plain(path)
        except CheckpointError as error:
            self.problems.append(str(error).splitlines()[0])
            return None
        if not isinstance(found, dict):
            self.problems.append(f"{name} holds a {type(found).__name__}, and no state")
            return None
        return found


def _bare(name: str, known: Collection[str]) -> str:
    """The name of a weight without those of the containers that Accelerate saves with it; one that is known stays."""
    if name in known:
        return name
    return ".".join(part for part in name.removeprefix("module.").split(".") if part != "_orig_mod")
