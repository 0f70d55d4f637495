"""Give parameters their names in the state of an optimizer, so that their order does not matter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import nn
from torch.optim import Optimizer

from accel_amp.optimizer_parameters import parameters_of

Names = dict[int, str]


def names_of(models: Mapping[str, nn.Module]) -> Names:
    """Return the name of each parameter by its identity: the name of its model, a dot, and its own.

    Args:
        models: The models by their names; a parameter that two of them have is named after the first.
    """
    names: Names = {}
    for key, model in models.items():
        for name, parameter in model.named_parameters():
            names.setdefault(id(parameter), f"{key}.{name}")
    return names


@final
class NamedOptimizerState:
    """The state dict of an optimizer with names in the places of numbers.

    Args:
        optimizer: The optimizer whose state is taken or loaded.
        names: The name of each parameter, as `names_of` returns it.
    """

    def __init__(self, optimizer: Optimizer, names: Names) -> None:
        self._optimizer = optimizer
        self._names = names

    def state(self) -> dict[str, Any]:
        """Return the state dict as it is now."""
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
        """Return why the optimizer cannot resume from a state that `state` returned, or nothing.

        Raises:
            LookupError: It lacks its groups.
            TypeError: It is no state.
        """
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
        """Load what `state` returned, each entry in the dtype that it was saved with."""
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
        for name, parameter in self._named():
            number = number_of[name]
            loaded, entry = self._optimizer.state.get(parameter), entries.get(number)
            if not isinstance(loaded, dict) or not isinstance(entry, dict):
                continue
            for name, value in entry.items():
                # torch converts what it loads to the dtype of the parameter
                if isinstance(value, torch.Tensor) and loaded[name].dtype != value.dtype:
                    loaded[name] = value.to(loaded[name].device)

    def parameters(self) -> dict[str, torch.Tensor]:
        """Return the parameters of the optimizer by their names: that of its position for one of no known model."""
        return dict(self._named())

    def _named(self) -> list[tuple[str, torch.Tensor]]:
        placed = enumerate(parameters_of(self._optimizer))
        return [(self._names.get(id(parameter), f"parameter {place}"), parameter) for place, parameter in placed]

    def _name_of(self, state: dict[str, Any]) -> dict[Any, str]:
        """Return the name of each number of a state dict."""
        numbers = [number for group in state["param_groups"] for number in group["params"]]
        return dict(zip(numbers, (name for name, _ in self._named()), strict=True))


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
