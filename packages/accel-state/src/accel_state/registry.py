"""Find plug-ins by name, where the file name is the registration."""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass, field
from importlib import import_module
from typing import Generic, TypeVar, cast

from accel_state.entry_points import entry_points_of
from accel_state.errors import UnknownName

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Registry(Generic[T]):
    """The plug-ins of one kind: the modules of a folder, and entry points of other distributions.

    Args:
        package: Import name of the folder.
        group: Group of the entry points.
        symbol: Name in each module that is the plug-in.
        added: Plug-ins of the program, which come before others of their name.
    """

    package: str
    group: str
    symbol: str
    added: dict[str, T] = field(default_factory=dict)

    def names(self) -> tuple[str, ...]:
        """Return every name that `load` accepts, sorted. Nothing is imported but the folder itself."""
        folder = import_module(self.package).__path__
        ours = {module.name for module in pkgutil.iter_modules(folder) if not module.name.startswith("_")}
        return tuple(sorted(ours | {entry.name for entry in entry_points_of(self.group)} | self.added.keys()))

    def load(self, name: str) -> T:
        """Return the plug-in of that name.

        Raises:
            UnknownName: With the names that there are.
        """
        if name not in self.names():
            raise UnknownName(f"no {self.symbol.lower()} named {name!r}; there are: {', '.join(self.names())}")
        if name in self.added:
            return self.added[name]
        for entry in entry_points_of(self.group):
            if entry.name == name:
                return cast(T, entry.load())
        return cast(T, getattr(import_module(f"{self.package}.{name}"), self.symbol))
