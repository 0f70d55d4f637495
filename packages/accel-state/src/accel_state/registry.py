"""Plug-ins by name: the file name is the registration."""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass
from importlib import import_module
from typing import Generic, TypeVar, cast

from accel_state.entry_points import entry_points_of
from accel_state.errors import UnknownName

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Registry(Generic[T]):
    """Names to plug-ins: the modules of a folder, and other distributions' entry points."""

    package: str
    group: str
    symbol: str

    def names(self) -> tuple[str, ...]:
        """Every name that `load` accepts, sorted; nothing is imported but the folder itself."""
        folder = import_module(self.package).__path__
        ours = {module.name for module in pkgutil.iter_modules(folder) if not module.name.startswith("_")}
        return tuple(sorted(ours | {entry.name for entry in entry_points_of(self.group)}))

    def load(self, name: str) -> T:
        """The plug-in called `name`.

        Raises: UnknownName, which lists the names there are.
        """
        if name not in self.names():
            raise UnknownName(f"no {self.symbol.lower()} named {name!r}; there are: {', '.join(self.names())}")
        for entry in entry_points_of(self.group):
            if entry.name == name:
                return cast(T, entry.load())
        return cast(T, getattr(import_module(f"{self.package}.{name}"), self.symbol))
