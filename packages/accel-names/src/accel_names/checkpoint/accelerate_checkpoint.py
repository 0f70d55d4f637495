"""Read checkpoints that Hugging Face Accelerate wrote, without running code from them.

Those of sharded models are a file of whole tensors (FULL_STATE_DICT) or a folder of torch.distributed.checkpoint
(SHARDED_STATE_DICT); optimizers go by the names of parameters in them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, final

import torch
from accel_amp import AcceleratedScheduler, LossScaler
from accel_amp.optimizer_state import NamedOptimizerState, names_of
from accel_checkpoint import CheckpointError, weight_files
from accel_checkpoint.load import read_plain, read_shapes, read_tensors, require_fit
from accel_checkpoint.pieces import is_distributed, like
from torch import nn
from torch.optim import Optimizer

from accel_names.checkpoint.distributed_checkpoint import METADATA, DistributedCheckpoint, StatePath

T = TypeVar("T")
#: what each of its processes writes, and nobody else
MARK = "random_states_0.pkl"


def is_accelerates(folder: Path) -> bool:
    """Return whether a folder looks like what Accelerate's save_state writes."""
    return (folder / MARK).is_file()


@final
class AccelerateCheckpoint:
    """A checkpoint of Accelerate, read and compared with what it is to be loaded into.

    Nothing is changed before `load`; `problems` says in words why the checkpoint does not fit.

    Args:
        folder: The folder that Accelerate's `save_state` wrote.
        models: The models by their names.
        optimizers: The optimizers, in the order in which they were prepared.
        schedulers: The schedulers, in the order in which they were prepared.
        objects: The objects that were registered, in their order.
        scaler: The loss scaler, if there is one.
    """

    def __init__(
        self,
        folder: Path,
        models: Mapping[str, nn.Module],
        optimizers: Sequence[Optimizer],
        schedulers: Sequence[AcceleratedScheduler],
        objects: Sequence[Any],
        scaler: LossScaler | None,
    ) -> None:
        self.folder = folder
        self.problems: list[str] = []
        self._names = names_of(models)
        self._models = [
            (model, self._noted(partial(self._weights, place, model))) for place, model in enumerate(models.values())
        ]
        owners: list[tuple[Any, str]] = [
            *((owner, f"{_key('scheduler', place)}.bin") for place, owner in enumerate(schedulers)),
            *((owner, f"custom_checkpoint_{place}.pkl") for place, owner in enumerate(objects)),
            *([(scaler, "scaler.pt")] if scaler is not None else []),
        ]
        # what loads a state, and the state
        self._states: list[tuple[Callable[[Any], object], Any]] = [
            *(
                (by_name.load, self._noted(partial(self._optimizer, place, optimizer, by_name)))
                for place, optimizer in enumerate(optimizers)
                for by_name in [NamedOptimizerState(optimizer, self._names)]
            ),
            *((owner.load_state_dict, self._noted(partial(self._read, file))) for owner, file in owners),
        ]
        saved = len(list(folder.glob("custom_checkpoint_*.pkl")))
        if saved != len(objects):
            self.problems.append(f"{saved} registered objects were saved, and {len(objects)} are registered here")

    def load(self) -> None:
        """Load everything, if there are no problems."""
        for model, path in self._models:
            state = model.state_dict(keep_vars=True)
            with torch.no_grad():
                for name, tensor in _weights_at(path, state) if path is not None else ():
                    like(tensor, state[name], into=state[name])
        for load_state, saved in self._states:
            load_state(saved)

    @property
    def left(self) -> str:
        """A sentence on what cannot be resumed from it."""
        return (
            f"{self.folder} was written by Accelerate: models, optimizers, schedulers and registered objects go on from"
            " it; random numbers, which it pickles, and places in loaders do not. Leave out what an epoch has seen with"
            " skip_first_batches"
        )

    def _noted(self, read: Callable[[], T]) -> T | None:
        """Return what is read, or None with the problem noted."""
        try:
            return read()
        except CheckpointError as error:
            self.problems.append(str(error))
            return None

    def _weights(self, place: int, model: nn.Module) -> Path:
        names = [
            f"{_key(stem, place)}{suffix}{ending}"
            for stem, suffix in (("model", ".safetensors"), ("pytorch_model", ".bin"))
            for ending in ("", ".index.json")
        ]
        for name in (*names, f"{_key('pytorch_model_fsdp', place)}.bin", f"pytorch_model_fsdp_{place}"):
            path = self.folder / name
            if path.is_file() or (path / METADATA).is_file():
                _compare(path, model.state_dict(keep_vars=True))
                return path
        raise CheckpointError(f"there are no weights of model {place}: {_key('model', place)}.safetensors")

    def _optimizer(self, place: int, optimizer: Optimizer, by_name: NamedOptimizerState) -> dict[str, Any]:
        """Return the state of an optimizer by names of parameters."""
        name, parameters = f"{_key('optimizer', place)}.bin", by_name.parameters()
        if (self.folder / f"optimizer_{place}" / METADATA).is_file():
            state = self._distributed_optimizer(place, parameters)
        else:
            state = self._read(name)
        if not {"state", "param_groups"} <= set(state):
            raise CheckpointError(f"{name} holds no state of an optimizer")
        saved = [group["params"] for group in state["param_groups"]]
        listed = [key for keys in saved for key in keys]
        if any(isinstance(key, str) for key in listed):
            names = {key: self._full_name(place, key) for key in [*listed, *state["state"]]}
        else:
            here = [len(group["params"]) for group in optimizer.param_groups]
            if list(map(len, saved)) != here:
                raise CheckpointError(
                    f"optimizer {place} had groups of {list(map(len, saved))} parameters, and has {here}"
                )
            names = dict(zip(listed, parameters, strict=True))
        # torch also keeps what belongs to no parameter
        entries = {names.get(key, key): entry for key, entry in state["state"].items()}
        state = {
            **state,
            "state": {key: _as_here(entry, parameters.get(key)) for key, entry in entries.items()},
            "param_groups": [
                {**group, "params": [names[key] for key in group["params"]]} for group in state["param_groups"]
            ],
        }
        self.problems += [f"optimizer {place}: {problem}" for problem in by_name.problems(state)]
        wrong = [
            f"{key} of {name}"
            for name, entry in entries.items()
            if name in parameters and isinstance(entry, dict)
            for key, value in entry.items()
            if isinstance(value, torch.Tensor)
            if value.ndim == parameters[name].ndim > 0 and value.shape != parameters[name].shape
        ]
        if wrong:
            self.problems.append(f"optimizer {place}: another shape than the parameter: {', '.join(wrong[:5])}")
        return state

    def _distributed_optimizer(self, place: int, parameters: Mapping[str, torch.Tensor]) -> Any:
        """Return the state of an optimizer that is a folder of torch.distributed.checkpoint."""

        def layout(path: StatePath) -> torch.Tensor | None:
            is_entry = len(path) > 3 and path[1] == "state"
            return parameters.get(self._full_name(place, str(path[2]))) if is_entry else None

        state = DistributedCheckpoint(self.folder / f"optimizer_{place}").state(layout).get("optimizer", {})
        return {**state, "param_groups": [group for _, group in sorted(state.get("param_groups", {}).items())]}

    def _full_name(self, place: int, name: str) -> str:
        """Return the name of a parameter of the model that has the optimizer's number, or else of the first."""
        known = set(self._names.values())
        names = [f"{model}.{given}" for model in (_key("model", place), "model") for given in (name, _bare(name, ()))]
        return next((given for given in names if given in known), names[0])

    def _read(self, name: str) -> dict[str, Any]:
        path = self.folder / name
        if not path.is_file():
            raise CheckpointError(f"{name} is missing")
        try:
            state = read_plain(path)
        except CheckpointError as error:
            raise CheckpointError(str(error).splitlines()[0]) from None
        if not isinstance(state, dict):
            raise CheckpointError(f"{name} holds a {type(state).__name__}, not a state")
        return state


def _key(kind: str, place: int) -> str:
    """Return the name of the first, second, ... file of a kind."""
    return kind if place == 0 else f"{kind}_{place}"


def _bare(name: str, known: Collection[str]) -> str:
    """Return the name of a weight, if it is not known, without those of its containers."""
    if name in known:
        return name
    return ".".join(part for part in name.removeprefix("module.").split(".") if part != "_orig_mod")


def _compare(path: Path, state: Mapping[str, Any]) -> None:
    """Raise if a file of weights does not fit the state of a model."""
    saved = {_bare(name, state): shape for name, shape in _shapes_at(path).items()}
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    require_fit(path, saved, tensors, {}, strict=True)


def _shapes_at(path: Path) -> dict[str, tuple[int, ...]]:
    if path.is_dir():
        shapes = DistributedCheckpoint(path).shapes
        return {".".join(map(str, place[1:])): shape for place, shape in shapes.items() if place[0] == "model"}
    return {name: shape for file in weight_files(path) for name, shape in read_shapes(file).items()}


def _weights_at(path: Path, state: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the name in the state, and the tensor, of each weight."""
    if path.is_dir():
        weights = DistributedCheckpoint(path)
        for place in weights.shapes:
            if place[0] == "model":
                name = _bare(".".join(map(str, place[1:])), state)
                yield name, weights.read(place, state[name])
        return
    for file in weight_files(path):
        yield from ((_bare(name, state), tensor) for name, tensor in read_tensors(file))


def _as_here(entry: Any, parameter: torch.Tensor | None) -> Any:
    """Return an entry of an optimizer's state with tensors of the dtype of the parameter, divided as it is."""
    if parameter is None or not isinstance(entry, dict):
        return entry
    ready = dict(entry)
    for name, value in entry.items():
        if not isinstance(value, torch.Tensor) or name == "step":
            continue
        if value.is_floating_point():  # as torch does: weights in half precision may have become float32 masters
            ready[name] = value = value.to(parameter.dtype)
        if is_distributed(parameter) and value.shape == parameter.shape:
            ready[name] = like(value, parameter)
    return ready
