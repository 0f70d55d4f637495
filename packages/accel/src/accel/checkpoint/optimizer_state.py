"""The state of an optimizer by the names of its parameters, so that their order does not matter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

Names = dict[int, str]


def names_of(models: Mapping[str, nn.Module]) -> Names:
    """The name of each parameter, by its identity; that of the model comes first."""
    found: Names = {}
    for key, model in models.items():
        for name, parameter in model.named_parameters():
            found.setdefault(id(parameter), f"{key}.{name}")
    return found


def named_state(optimizer: Optimizer, names: Names) -> dict[str, Any]:
    """The state dict of an optimizer with names in the places of numbers."""
    state = optimizer.state_dict()
    name_of = _numbers(optimizer, state, names)
    return {
        **state,
        "state": {name_of.get(number, number): entry for number, entry in state["state"].items()},
        "param_groups": [
            {**group, "params": [name_of[number] for number in group["params"]]} for group in state["param_groups"]
        ],
    }


def problems(optimizer: Optimizer, found: Any, names: Names) -> list[str]:
    """Why an optimizer cannot go on from a state of `named_state`."""
    state = optimizer.state_dict()
    name_of = _numbers(optimizer, state, names)
    mine = [{name_of[number] for number in group["params"]} for group in state["param_groups"]]
    if not isinstance(found, dict) or not {"state", "param_groups"} <= set(found):
        return ["its state is damaged"]
    theirs = [set(group["params"]) for group in found["param_groups"]]
    if len(mine) != len(theirs):
        return [f"it has {len(mine)} parameter groups, and {len(theirs)} were saved"]
    here, there = set[str]().union(*mine), set[str]().union(*theirs)
    wrong = []
    if here - there:
        wrong.append(f"no state was saved of {_some(here - there)}")
    if there - here:
        wrong.append(f"a state was saved of {_some(there - here)}, which it does not have")
    if not wrong and any(one not in theirs for one in mine):
        wrong.append("its parameters are in other groups than they were")
    return wrong


def load_named(optimizer: Optimizer, found: dict[str, Any], names: Names) -> None:
    """Loads a state of `named_state`; each entry keeps the dtype that it was saved with."""
    state = optimizer.state_dict()
    name_of = _numbers(optimizer, state, names)
    number_of = {name: number for number, name in name_of.items()}
    groups = []
    for group in state["param_groups"]:
        mine = {name_of[number] for number in group["params"]}
        theirs = next(one for one in found["param_groups"] if set(one["params"]) == mine)
        groups.append({**theirs, "params": list(group["params"])})
    entries = {number_of.get(name, name): entry for name, entry in found["state"].items()}
    optimizer.load_state_dict({**found, "state": entries, "param_groups": groups})
    parameters = {number: one for number, one in _parameters(optimizer, state)}
    for number, entry in entries.items():
        parameter = parameters.get(number)
        loaded = optimizer.state.get(parameter) if isinstance(entry, dict) and parameter is not None else None
        for name, value in entry.items() if isinstance(loaded, dict) else ():
            # torch converts what it loads to the dtype of the parameter
            if isinstance(value, torch.Tensor) and loaded is not None and loaded[name].dtype != value.dtype:
                loaded[name] = value.to(loaded[name].device)


def _numbers(optimizer: Optimizer, state: dict[str, Any], names: Names) -> dict[Any, str]:
    """The name of each number that a state dict has; one that is of no prepared model has its place for a name."""
    found = {}
    for place, (number, parameter) in enumerate(_parameters(optimizer, state)):
        found[number] = names.get(id(parameter), f"parameter {place}")
    return found


def _parameters(optimizer: Optimizer, state: dict[str, Any]) -> list[tuple[Any, torch.Tensor]]:
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    return list(zip(numbers, (one for group in optimizer.param_groups for one in group["params"]), strict=True))


def _some(names: set[str]) -> str:
    listed = sorted(names)
    return ", ".join(listed[:5]) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "")
