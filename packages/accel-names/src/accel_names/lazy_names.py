"""Find names of Accelerate where they live, when a script asks a module of accel for them."""

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
from typing import Any, NoReturn

TABLE = Path(__file__).with_name("accelerate_names.toml")


@dataclass(frozen=True, slots=True)
class NameTable:
    """A statement on each public name of Accelerate.

    Args:
        homes: The module and the name there, such as "accel_ops.listify", of each public name that is here.
        also: The same of each other name that scripts import from a module of Accelerate.
        different: How a name behaves in another way than Accelerate's.
        instead: What to do in place of using a name that is not here.
        stand_ins: The same for those that programs import at their top whether they use them or not.
        vendors: The names that are about the product of one vendor.
        libraries: The library that each `is_X_available` looks for.
        devices: The kind of device that each other `is_X_available` asks torch for.
    """

    homes: dict[str, str]
    also: dict[str, str]
    different: dict[str, str]
    instead: dict[str, str]
    stand_ins: dict[str, str]
    vendors: frozenset[str]
    libraries: dict[str, str]
    devices: dict[str, str]


@functools.cache
def table() -> NameTable:
    """Return the table, which is read once."""
    content = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    libraries, devices = content["libraries"], content["devices"]
    homes = _homes(content["homes"])
    homes |= {name: f"accel_names.availability.{name}" for name in [*libraries, *devices]}
    different, instead, stand_ins = (
        {name: words for words, names in content[section].items() for name in names.split()}
        for section in ("different", "instead", "stand_ins")
    )
    stand_ins = {name: words or instead[name] for name, words in stand_ins.items()}
    vendors = frozenset([*content["vendors"]["names"].split(), *devices])
    return NameTable(homes, _homes(content["also"]), different, instead, stand_ins, vendors, libraries, devices)


def _homes(modules: dict[str, str]) -> dict[str, str]:
    named = [(module, *word.partition("=")) for module, words in modules.items() for word in words.split()]
    return {name: f"{module}.{own or name}" for module, name, _, own in named}


def find(name: str, asked_of: str) -> Any:
    """Return the object of this name, or the module in a package that nothing has imported yet.

    Args:
        name: The name in Accelerate.
        asked_of: The module that a script asks for it.

    Raises:
        AttributeError: If there is neither, with what to do in its place.
    """
    known = table()
    home = known.homes.get(name) or known.also.get(name)
    if home is not None:
        module, _, own = home.rpartition(".")
        return getattr(import_module(module), own)
    if hasattr(sys.modules[asked_of], "__path__") and find_spec(f"{asked_of}.{name}") is not None:
        return import_module(f"{asked_of}.{name}")
    raise AttributeError(f"{asked_of}.{name} {_advice(name, known)}")


@functools.cache
def stand_in(name: str, reason: str) -> type:
    """Return a class that nobody can make, in place of a class or a function that programs only import.

    Args:
        name: The name in Accelerate.
        reason: What whoever makes it is told.
    """

    def refuse(self: object, *args: Any, **kwargs: Any) -> NoReturn:
        from accel_state.errors import CannotRun

        raise CannotRun(name, [reason])

    return type(name, (), {"__init__": refuse})


def _advice(name: str, known: NameTable) -> str:
    if (words := known.instead.get(name) or known.stand_ins.get(name)) is not None:
        return f"is not in accel: {words}"
    nearest = get_close_matches(name, [*known.homes, *known.also], n=1)
    return f"is not in accel: do you mean {nearest[0]}?" if nearest else "is not in accel, and not known of Accelerate"


def door(module: str, names: str | None = None) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a module.

    Args:
        module: The name of the module.
        names: The names that it lists, with blanks between them; by default all of the table.
    """
    own = sorted([*table().homes, *table().also] if names is None else names.split())

    def get(name: str) -> Any:
        if name == "__all__":
            return own
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return find(name, module)

    return get, lambda: own
