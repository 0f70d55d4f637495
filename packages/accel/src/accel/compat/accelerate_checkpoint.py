"""Checkpoints that Hugging Face Accelerate wrote, read without running code from them."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, final

import torch
from accel_checkpoint import CheckpointError, weight_files
from accel_checkpoint.load import read_plain, read_shapes, read_tensors
from torch import nn

from accel.checkpoint.registry import CheckpointRegistry
from accel.checkpoint.stateful_item import key

#: what each of its processes writes, and nobody else
MARK = "random_states_0.pkl"


def is_accelerates(folder: Path) -> bool:
    """Whether a folder looks like what Accelerate's save_state writes."""
    return (folder / MARK).is_file()


@final
class AccelerateCheckpoint:
    """A checkpoint of Accelerate, as what can be loaded from it: everything is read and compared first."""

    def __init__(self, folder: Path, registry: CheckpointRegistry) -> None:
        self.folder, self.problems = folder, list[str]()
        preparer, scaler, objects = registry.preparer, registry.components.scaler, list(registry.objects.values())
        self._models = [(model, self._weights(place, model)) for place, model in enumerate(registry.models().values())]
        # what takes a state, and the state
        self._states: list[tuple[Any, Any]] = [
            *((one.optimizer, self._optimizer(place, one.optimizer)) for place, one in enumerate(preparer.optimizers)),
            *((owner, self._read(f"{key('scheduler', place)}.bin")) for place, owner in enumerate(preparer.schedulers)),
            *((owner, self._read(f"custom_checkpoint_{place}.pkl")) for place, owner in enumerate(objects)),
        ]
        if scaler is not None:
            self._states.append((scaler, self._read("scaler.pt")))
        saved = len(list(folder.glob("custom_checkpoint_*.pkl")))
        if saved != len(objects):
            self.problems.append(f"{saved} registered objects were saved, and {len(objects)} are registered here")

    def load(self) -> None:
        """Loads everything; to be called when there are no problems."""
        for model, path in self._models:
            state = model.state_dict(keep_vars=True)
            with torch.no_grad():
                for file in weight_files(path) if path is not None else ():
                    for name, tensor in read_tensors(file):
                        state[_bare(name, state)].copy_(tensor)
        for owner, saved in self._states:
            owner.load_state_dict(saved)

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
        state = model.state_dict(keep_vars=True)
        saved: dict[str, tuple[int, ...]] = {}
        try:
            for file in weight_files(path):
                saved |= {_bare(name, state): shape for name, shape in read_shapes(file).items()}
        except CheckpointError as error:
            self.problems.append(str(error))
            return
        tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
        wrong = [name for name, shape in saved.items() if name not in tensors or tuple(tensors[name].shape) != shape]
        given = {tensors[name].data_ptr() for name in saved if name in tensors}  # tied weights are there once
        wrong += [name for name, value in tensors.items() if name not in saved and value.data_ptr() not in given]
        if wrong:
            self.problems.append(f"{path.name} does not fit the model: {', '.join(wrong[:5])}")

    def _optimizer(self, place: int, optimizer: torch.optim.Optimizer) -> Any:
        state = self._read(f"{key('optimizer', place)}.bin")
        if state is None:
            return None
        if not {"state", "param_groups"} <= set(state):
            self.problems.append(f"{key('optimizer', place)}.bin holds no state of an optimizer")
            return None
        saved = [len(group["params"]) for group in state["param_groups"]]
        here = [len(group["params"]) for group in optimizer.param_groups]
        if saved != here:
            self.problems.append(f"optimizer {place} had groups of {saved} parameters, and has {here}")
            return None
        numbers = [number for group in state["param_groups"] for number in group["params"]]
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
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
            state = read_plain(path)
        except CheckpointError as error:
            self.problems.append(str(error).splitlines()[0])
            return None
        if not isinstance(state, dict):
            self.problems.append(f"{name} holds a {type(state).__name__}, and no state")
            return None
        return state


def _bare(name: str, known: Collection[str]) -> str:
    """The name of a weight without those of the containers that Accelerate saves with it; one that is known stays."""
    if name in known:
        return name
    return ".".join(part for part in name.removeprefix("module.").split(".") if part != "_orig_mod")
