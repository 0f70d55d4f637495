"""Puts what was saved into objects, in such a way that one that refuses leaves all as they were."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from torch import nn

from accel.registered import Item
from accel.written import Found


def cannot_refuse(model: nn.Module) -> bool:
    """Whether a model takes any weights of its names, shapes and dtypes, as no code but torch's is asked about them."""
    return all(
        getattr(type(one), method).__module__.partition(".")[0] == "torch"
        and not one._load_state_dict_pre_hooks
        and not one._load_state_dict_post_hooks
        for one in model.modules()
        for method in ("load_state_dict", "_load_from_state_dict", "set_extra_state")
    )


def put(found: Found, items: Sequence[Item], models: Mapping[str, nn.Module]) -> tuple[list[str], Callable[[], None]]:
    """Loads everything up to the first thing that refuses, and why it did; and what gives all what they had."""
    undo, name, problems = list[Callable[[], None]](), "", list[str]()
    try:
        for item in items:
            name = item.name
            undo.append(partial(item.load, copy.deepcopy(item.state()) if item.mine else item.state()))
            item.load(found.state(name))
        for name, model in models.items():
            undo.append(partial(model.load_state_dict, copy.deepcopy(model.state_dict())))
            found.load_model(name, model)
    except Exception as error:  # noqa: BLE001 - code of the user's refuses, and all processes are to hear of it
        problems.append(f"{name}: {type(error).__name__}: {error}")

    def put_back() -> None:
        for one in reversed(undo):
            with suppress(Exception):  # an object that cannot load may not be able to do this either
                one()

    return problems, put_back


def put_weights(found: Found, models: Mapping[str, nn.Module]) -> list[str]:
    """Loads models that cannot refuse, of which no copy is needed; and what went wrong all the same."""
    name = ""
    try:
        for name, model in models.items():
            found.load_model(name, model)
    except Exception as error:  # noqa: BLE001 - memory or a disk, and all processes are to hear of it
        return [f"{name}: {type(error).__name__}: {error}"]
    return []
