"""Paths that scripts for Accelerate import from: each name comes from where it lives, when somebody asks for it."""

from __future__ import annotations

import functools
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("accelerate_names.toml")


@dataclass(frozen=True, slots=True)
class NameTable:
    """What became of Accelerate's public names."""

    #: the module that has each public name of Accelerate that is here
    homes: dict[str, str]
    #: the module that has each other name that scripts import from a module of Accelerate
    also: dict[str, str]
    #: how a name behaves in another way than Accelerate's
    different: dict[str, str]
    #: what to do in place of using a name that is not here
    instead: dict[str, str]
    #: names that are about the product of one vendor
    vendors: frozenset[str]
    #: the library, or the kind of device, that `is_X_available` asks for
    libraries: dict[str, str]
    devices: dict[str, str]


@functools.cache
def table() -> NameTable:
    """The table, read once."""
    content = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    libraries, devices = content["libraries"], content["devices"]
    homes = _homes(content["homes"])
    homes |= dict.fromkeys([*libraries, *devices], "accel_names.availability")
    instead = {name: words for words, names in content["instead"].items() for name in names.split()}
    different = {name: words for words, names in content["different"].items() for name in names.split()}
    vendors = frozenset([*content["vendors"]["names"].split(), *devices])
    return NameTable(homes, _homes(content["also"]), different, instead, vendors, libraries, devices)


def _homes(modules: dict[str, str]) -> dict[str, str]:
    return {name: module for module, names in modules.items() for name in names.split()}


def find(name: str, asked_of: str) -> Any:
    """Return the object of this name, or the module in a package that nothing has imported yet.

    Raises:
        AttributeError: If there is neither, with what to do in its place.
    """
    known = table()
    home = known.homes.get(name) or known.also.get(name)
    if home is not None:
        return getattr(import_module(home), name)
    if hasattr(sys.modules[asked_of], "__path__") and find_spec(f"{asked_of}.{name}") is not None:
        return import_module(f"{asked_of}.{name}")
    raise AttributeError(f"{asked_of}.{name} {_advice(name, known)}")


def _advice(name: str, known: NameTable) -> str:
    if name in known.instead:
        return f"is not in accel: {known.instead[name]}"
    nearest = get_close_matches(name, [*known.homes, *known.also], n=1)
    return f"is not in accel: do you mean {nearest[0]}?" if nearest else "is not in accel, and not known of Accelerate"


def door(module: str, names: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a module that has these names, wherever they live."""
    own = sorted(names.split())

    def get(name: str) -> Any:
        if name == "__all__":
            return own
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return find(name, module)

    return get, lambda: own


def utilities() -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of `accel.utils`: all names of the table."""
    return door("accel.utils", " ".join([*table().homes, *table().also]))
