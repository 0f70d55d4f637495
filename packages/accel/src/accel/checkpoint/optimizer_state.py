"""The state of an optimizer by the names of its parameters, so that their order does not matter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch
from accel_amp.optimizer_parameters import parameters_of
from accel_checkpoint.pieces import is_distributed
from torch import nn
from torch.optim import Optimizer

Names = dict[int, str]


def names_of(models: Mapping[str, nn.Module]) -> Names:
    """The name of each parameter, by its identity; that of the model comes first."""
    names: Names = {}
    for key, model in models.items():
        for name, parameter in model.named_parameters():
            names.setdefault(id(parameter), f"{key}.{name}")
    return names


@final
class NamedOptimizerState:
    """The state dict of an optimizer with names in the places of numbers."""

    def __init__(self, optimizer: Optimizer, names: Names) -> None:
        self._optimizer = optimizer
        self._names = names

    def state(self) -> dict[str, Any]:
        """The state dict as it is now."""
        state = self._optimizer.state_dict()
        name_of = self._name_of(state)
        return {
            **state,
            "state": {name_of.get(number, number): entry for number, entry in state["state"].items()},
            "param_groups": [
                {**group, "params": [name_of[number] for number in group["params"]]} for group in state["param_groups"]
            ],
        }

    def problems(self, saved: Any) -> list[str]:
        """Why the optimizer cannot go on from a state of `state`."""
        if not isinstance(saved, dict) or not {"state", "param_groups"} <= set(saved):
            return ["its state is damaged"]
        groups_here = [set(group["params"]) for group in self.state()["param_groups"]]
        groups_saved = [set(group["params"]) for group in saved["param_groups"]]
        if len(groups_here) != len(groups_saved):
            return [f"it has {len(groups_here)} parameter groups, and {len(groups_saved)} were saved"]
        here, there = set[str]().union(*groups_here), set[str]().union(*groups_saved)
        problems = []
        if here - there:
            problems.append(f"no state was saved of {_listed(here - there)}")
        if there - here:
            problems.append(f"a state was saved of {_listed(there - here)}, which it does not have")
        if not problems and any(group not in groups_saved for group in groups_here):
            problems.append("its parameters are in other groups than they were")
        return problems

    def load(self, saved: dict[str, Any]) -> None:
        """Loads a state of `state`; each entry keeps the dtype that it was saved with."""
        state = self._optimizer.state_dict()
        name_of = self._name_of(state)
        number_of = {name: number for number, name in name_of.items()}
        groups = []
        for group in state["param_groups"]:
            names = {name_of[number] for number in group["params"]}
            saved_group = next(other for other in saved["param_groups"] if set(other["params"]) == names)
            groups.append({**saved_group, "params": list(group["params"])})
        entries = {number_of.get(name, name): entry for name, entry in saved["state"].items()}
        self._optimizer.load_state_dict({**saved, "state": entries, "param_groups": groups})
        for number, parameter in self._parameters(state):
            loaded, entry = self._optimizer.state.get(parameter), entries.get(number)
            if not isinstance(loaded, dict) or not isinstance(entry, dict):
                continue
            for name, value in entry.items():
                # torch converts what it loads to the dtype of the parameter
                if isinstance(value, torch.Tensor) and loaded[name].dtype != value.dtype:
                    loaded[name] = value.to(loaded[name].device)

    def layouts(self, prefix: str) -> dict[str, torch.Tensor]:
        """The divided parameters, by their names after a prefix."""
        parameters = self._parameters(state := self._optimizer.state_dict())
        name_of = self._name_of(state)
        return {prefix + name_of[number]: tensor for number, tensor in parameters if is_distributed(tensor)}

    def _name_of(self, state: dict[str, Any]) -> dict[Any, str]:
        """The name of each number of a state dict; a parameter of no prepared model has its place for a name."""
        numbered = enumerate(self._parameters(state))
        return {number: self._names.get(id(parameter), f"parameter {place}") for place, (number, parameter) in numbered}

    def _parameters(self, state: dict[str, Any]) -> list[tuple[Any, torch.Tensor]]:
        numbers = [number for group in state["param_groups"] for number in group["params"]]
        return list(zip(numbers, parameters_of(self._optimizer), strict=True))


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
