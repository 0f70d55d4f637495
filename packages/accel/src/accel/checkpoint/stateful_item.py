"""The objects that are saved and loaded besides models, each under its name."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from accel_amp.optimizer_state import NamedOptimizerState, Names
from accel_checkpoint import CheckpointError, encode
from accel_checkpoint.pieces import is_distributed

from accel.preparation import Preparer
from accel.step.training_step import TrainingStep


@dataclass(frozen=True, slots=True)
class StatefulItem:
    """An object that has a state.

    Args:
        name: The name that it is saved under.
        file: The file for its tensors.
        kind: The name of its class.
        state: Returns its state.
        problems: Says in words why a state cannot be loaded, and changes nothing.
        load: Loads a state.
        users_own: Whether it is an object of the user's own.
        layouts: Returns its divided tensors, by the path of what is saved of each. Loaded tensors are divided like
            them.
        collective: Whether its state is spread over processes, so that every process must call `state` and `load`.
    """

    name: str
    file: str
    kind: str
    state: Callable[[], Any]
    problems: Callable[[Any], list[str]]
    load: Callable[[Any], None]
    users_own: bool = False
    layouts: Callable[[], Mapping[str, torch.Tensor]] = dict
    collective: bool = False


#: where the tensors of everything go that is neither a model nor an optimizer
REST = "state.safetensors"


def key(kind: str, place: int) -> str:
    """Return the name of the first, second, ... object of a kind."""
    return kind if place == 0 else f"{kind}_{place}"


def items(preparer: Preparer, training: TrainingStep, objects: dict[str, Any], names: Names) -> list[StatefulItem]:
    """Return everything that has a state besides models, in the order of loading: what may refuse comes first.

    Args:
        preparer: What was prepared.
        training: The steps that were taken.
        objects: What the script has registered, by name.
        names: The names of parameters.
    """
    listed = [
        _of(key("loader", place), loader, _loader_problems, kind="DataLoader", collective=True)
        for place, loader in enumerate(preparer.loaders)
    ]
    listed += [_of(f"object:{name}", owner, lambda owner, state: [], users_own=True) for name, owner in objects.items()]
    for place, prepared in enumerate(preparer.optimizers):
        name, optimizer = key("optimizer", place), NamedOptimizerState(prepared.saved, names)
        file, kind = f"{name}.safetensors", type(prepared.optimizer).__name__
        spread = prepared.state_of is not None
        layouts = partial(_layouts_of_state, name, optimizer)
        listed.append(
            StatefulItem(name, file, kind, optimizer.state, optimizer.problems, optimizer.load, False, layouts, spread)
        )
    for place, scheduler in enumerate(preparer.schedulers):
        listed.append(_of(key("scheduler", place), scheduler, _lacking, kind=type(scheduler.scheduler).__name__))
    if preparer.components.scaler is not None:
        listed.append(_of("scaler", preparer.components.scaler, _no_mapping))
    # the words under which checkpoints have it
    return [*listed, _of("clock", training, TrainingStep.problems, kind="StepClock")]


def _of(
    name: str,
    owner: Any,
    problems: Callable[[Any, Any], list[str]],
    *,
    kind: str | None = None,
    users_own: bool = False,
    collective: bool = False,
) -> StatefulItem:
    layouts = partial(_layouts, name, owner) if users_own else dict
    return StatefulItem(
        name,
        REST,
        kind or type(owner).__name__,
        owner.state_dict,
        partial(problems, owner),
        owner.load_state_dict,
        users_own,
        layouts,
        collective,
    )


def _layouts_of_state(name: str, optimizer: NamedOptimizerState) -> dict[str, torch.Tensor]:
    parameters = optimizer.parameters().items()
    return {f"{name}.state.{path}": parameter for path, parameter in parameters if is_distributed(parameter)}


def _layouts(name: str, owner: Any) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    with suppress(CheckpointError):  # a state that cannot be saved has not been saved
        encode({name: owner.state_dict()}, tensors)
    return {path: tensor for path, tensor in tensors.items() if is_distributed(tensor)}


def named_objects(objects: Sequence[Any], named: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """Return objects under the names that they are saved by: their own, or that of their class.

    Args:
        objects: Objects without names.
        named: Objects with names.
        known: Those that have their names already.

    Raises:
        ValueError: It lists all that have no state, and names that are taken.
    """
    all_named: dict[str, Any] = dict(known)
    problems = []
    for place, added in enumerate(objects):
        kind, number = type(added).__name__, 0
        while key(kind, number) in all_named or key(kind, number) in named:
            number += 1
        if not _has_state(added):
            problems.append(f"number {place} (a {kind})")
        all_named[key(kind, number)] = added
    for name, added in named.items():
        if not _has_state(added):
            problems.append(f"{name} (a {type(added).__name__})")
        if name in known and known[name] is not added:
            problems.append(f"{name}, which is the name of another object")
        all_named[name] = added
    if problems:
        raise ValueError(
            "register_for_checkpointing takes objects with state_dict and load_state_dict, each under a name of its"
            f" own; found {', '.join(problems)}"
        )
    return all_named


def _has_state(candidate: Any) -> bool:
    methods = [getattr(candidate, name, None) for name in ("state_dict", "load_state_dict")]
    return not isinstance(candidate, type) and all(map(callable, methods))


def _loader_problems(loader: Any, state: Any) -> list[str]:
    from accel_data.resume.loader_state import LoaderState, ResumeError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # said when it is loaded
            LoaderState.of(state, fresh=loader.fresh(), strict=True)
    except ResumeError as error:
        return [str(error)]
    return []


def _no_mapping(owner: Any, state: Any) -> list[str]:
    return [] if isinstance(state, dict) else [f"its state is a {type(state).__name__}"]


def _lacking(owner: Any, state: Any) -> list[str]:
    missing = sorted(owner.state_dict().keys() - state.keys()) if isinstance(state, dict) else []
    return _no_mapping(owner, state) or ([f"its state lacks {', '.join(missing)}"] if missing else [])
