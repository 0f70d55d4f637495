"""What is saved and loaded besides models: each thing under its name, with how to take, check and put its state."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from accel_amp import LossScaler

from accel.build import Components
from accel.checkpoint.optimizer_state import Names, load_named, named_state, problems
from accel.preparation import Preparer
from accel.step.accumulation import GradientAccumulation


@dataclass(frozen=True, slots=True)
class StatefulItem:
    """One thing that has a state.

    `file` is where its tensors go, `problems` says in words why a state cannot be loaded, and changes nothing.
    """

    name: str
    file: str
    kind: str
    state: Callable[[], Any]
    problems: Callable[[Any], list[str]]
    load: Callable[[Any], None]
    #: whether it is an object of the user's own
    mine: bool = False


#: where the tensors of everything go that is neither a model nor an optimizer
REST = "state.safetensors"


def key(kind: str, place: int) -> str:
    """The name of the first, second, ... thing of a kind."""
    return kind if place == 0 else f"{kind}_{place}"


def items(
    preparer: Preparer, components: Components, gradients: GradientAccumulation, objects: dict[str, Any], names: Names
) -> list[StatefulItem]:
    """Everything that has a state besides models, in the order in which it is loaded: what may refuse comes first."""
    found = [_loader(key("loader", place), one) for place, one in enumerate(preparer.loaders)]
    found += [_object(name, one) for name, one in objects.items()]
    for place, optimizer in enumerate(preparer.optimizers):
        name = key("optimizer", place)
        inner = optimizer.optimizer
        found.append(
            StatefulItem(
                name,
                f"{name}.safetensors",
                type(inner).__name__,
                partial(named_state, inner, names),
                partial(problems, inner, names=names),
                partial(load_named, inner, names=names),
            )
        )
    for place, scheduler in enumerate(preparer.schedulers):
        kind = type(scheduler.scheduler).__name__
        name = key("scheduler", place)
        same = partial(_same_keys, scheduler.state_dict)
        found.append(StatefulItem(name, REST, kind, scheduler.state_dict, same, scheduler.load_state_dict))
    if components.scaler is not None:
        found.append(_scaler(components.scaler))
    found.append(_accumulation(components, preparer, gradients))
    return found


def named_objects(objects: Sequence[Any], named: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """The objects under the names that they are saved by: their own, or that of their class.

    Raises: ValueError that lists all that have no state, and names that are taken.
    """
    found: dict[str, Any] = dict(known)
    wrong = []
    for place, one in enumerate(objects):
        kind, number = type(one).__name__, 0
        while key(kind, number) in found or key(kind, number) in named:
            number += 1
        if not _has_state(one):
            wrong.append(f"number {place} (a {kind})")
        found[key(kind, number)] = one
    for name, one in named.items():
        if not _has_state(one):
            wrong.append(f"{name} (a {type(one).__name__})")
        if name in known and known[name] is not one:
            wrong.append(f"{name}, which is the name of another object")
        found[name] = one
    if wrong:
        raise ValueError(
            "register_for_checkpointing takes objects with state_dict and load_state_dict, each under a name of its"
            f" own; found {', '.join(wrong)}"
        )
    return found


def _has_state(one: Any) -> bool:
    return not isinstance(one, type) and all(
        callable(getattr(one, name, None)) for name in ("state_dict", "load_state_dict")
    )


def _object(name: str, one: Any) -> StatefulItem:
    return StatefulItem(
        f"object:{name}", REST, type(one).__name__, one.state_dict, lambda state: [], one.load_state_dict, mine=True
    )


def _loader(name: str, loader: Any) -> StatefulItem:
    def refused(state: Any) -> list[str]:
        from accel_data.resume.loader_state import LoaderState, ResumeError

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # said when it is loaded
                LoaderState.of(state, fresh=loader.fresh(), strict=True)
        except ResumeError as error:
            return [str(error)]
        return []

    return StatefulItem(name, REST, "DataLoader", loader.state_dict, refused, loader.load_state_dict)


def _scaler(scaler: LossScaler) -> StatefulItem:
    return StatefulItem("scaler", REST, "LossScaler", scaler.state_dict, _mapping, scaler.load_state_dict)


def _accumulation(components: Components, preparer: Preparer, gradients: GradientAccumulation) -> StatefulItem:
    accumulation, window = components.accumulation, gradients.window

    def state() -> dict[str, Any]:
        taken = [one.steps for one in preparer.optimizers]
        return {"steps": accumulation.steps, "taken": taken, "window": window.state_dict()}

    def refused(state: Any) -> list[str]:
        fine = isinstance(state, dict) and {"steps", "taken", "window"} <= set(state)
        fine = fine and isinstance(state["window"], dict) and "newest" in state["window"]
        fine = fine and type(state["steps"]) is int and isinstance(state["taken"], list)
        return [] if fine and len(state["taken"]) == len(preparer.optimizers) else ["its state is damaged"]

    def load(state: Any) -> None:
        accumulation.reset()
        accumulation.steps = state["steps"]
        for one, taken in zip(preparer.optimizers, state["taken"], strict=True):
            one.steps = taken
        window.load_state_dict(state["window"])

    # the words under which checkpoints have it
    return StatefulItem("clock", REST, "StepClock", state, refused, load)


def _same_keys(own: Callable[[], dict[str, Any]], state: Any) -> list[str]:
    missing = sorted(own().keys() - state.keys()) if isinstance(state, dict) else []
    return _mapping(state) or ([f"its state lacks {', '.join(missing)}"] if missing else [])


def _mapping(state: Any) -> list[str]:
    return [] if isinstance(state, dict) else [f"its state is a {type(state).__name__}"]
