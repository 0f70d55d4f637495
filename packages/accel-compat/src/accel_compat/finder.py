"""Answers every import below `accelerate` by accel, and the questions for its metadata."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec

# not imported from typing: that takes longer than all that is done here
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from importlib.metadata import Distribution, DistributionFinder
    from types import ModuleType
    from typing import Any
else:
    ModuleType = type(sys)

PEER = "accelerate"
#: the release of Accelerate whose names accel answers, which is what programs are told
VERSION = "1.15.0"
PAGE = "docs/guides/programs-for-accelerate.md"
#: modules of Accelerate whose parts may lack a name here that the module itself has
_WHOLE = ("utils", "test_utils")


def install() -> None:
    """Has every later `import accelerate` of this process, and of processes that it starts, answered by accel.

    Raises: ImportError if Accelerate itself is imported already.
    """
    if any(isinstance(finder, AliasFinder) for finder in sys.meta_path):
        return
    imported = sys.modules.get(PEER)
    if imported is not None:
        place = getattr(imported, "__file__", None) or "an unknown place"
        raise ImportError(
            f"accel_compat.install(): accelerate is imported already, from {place}, and modules hold its names;"
            " call install() before the first import of accelerate, or of a library that imports it;"
            " accel launch --as_accelerate does so",
            name=PEER,
        )
    sys.meta_path.insert(0, AliasFinder())
    os.environ["ACCEL_AS_ACCELERATE"] = "1"


class AliasFinder:
    """Finds modules below `accelerate` in accel, and a distribution `accelerate` that nothing has installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of an alias; None for modules of other packages.

        Raises: ModuleNotFoundError if accel has no such module.
        """
        if fullname.partition(".")[0] != PEER:
            return None
        loader = AliasLoader(answer_for(fullname))
        spec = ModuleSpec(fullname, loader, is_package=True)  # type: ignore[arg-type] # its base takes long to import
        spec.submodule_search_locations = []
        return spec

    def find_distributions(self, context: DistributionFinder.Context) -> Iterable[Distribution]:
        """The metadata of `accelerate`, if it is asked for it or for all."""
        if context.name is not None and context.name.lower() != PEER:
            return []
        from accel_compat.distribution import AliasDistribution

        return [AliasDistribution()]

    def invalidate_caches(self) -> None:
        """Nothing: there are no caches."""


class AliasLoader:
    """Makes the alias of one module of accel."""

    def __init__(self, ours: str) -> None:
        self._ours = ours

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """An alias of the module, which is imported first."""
        return Alias(spec.name, import_module(self._ours))

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: the module behind the alias has run."""


class Alias(ModuleType):
    """A module under a name of Accelerate; what is read and set goes to accel's module."""

    def __init__(self, name: str, target: ModuleType) -> None:
        super().__init__(name, target.__doc__)
        self.__dict__.update(_target=target, __path__=[])

    def __getattr__(self, name: str) -> Any:
        if name == "__version__" and self.__name__ == PEER:
            return VERSION
        target = self.__dict__["_target"]
        if name == "__all__":
            return target.__dict__.get("__all__") or [word for word in dir(target) if not word.startswith("_")]
        if not name.startswith("_") and (submodule := self._submodule(name)) is not None:
            return submodule
        _, *parts = target.__name__.split(".")
        if len(parts) > 1 and parts[0] in _WHOLE and not hasattr(target, name):
            return getattr(import_module(target.__name__.rpartition(".")[0]), name)
        return getattr(target, name)

    def __setattr__(self, name: str, value: object) -> None:
        dunder = name.startswith("__") and name.endswith("__")
        if dunder or isinstance(value, Alias):
            self.__dict__[name] = value
        else:
            setattr(self.__dict__["_target"], name, value)

    def __delattr__(self, name: str) -> None:
        if name in self.__dict__:
            del self.__dict__[name]
        else:
            delattr(self.__dict__["_target"], name)

    def __dir__(self) -> list[str]:
        return sorted({*dir(self.__dict__["_target"]), "__version__"})

    def _submodule(self, name: str) -> ModuleType | None:
        """The alias of a submodule: a program reads `accelerate.utils` without an import of its own."""
        from importlib.util import find_spec

        target = self.__dict__["_target"]
        is_value = name in target.__dict__ and not isinstance(target.__dict__[name], ModuleType)
        has_modules = hasattr(target, "__path__")
        if is_value or not has_modules or find_spec(f"{target.__name__}.{name}") is None:
            return None
        return import_module(f"{self.__name__}.{name}")


def answer_for(fullname: str) -> str:
    """The module of accel that answers a module of Accelerate.

    Raises: ModuleNotFoundError if there is none.
    """
    from importlib.util import find_spec

    import accel

    parts = fullname.split(".")[1:]
    ours = ".".join([accel.__name__, *(parts[:1] if parts[:1] and parts[0] in _WHOLE else parts)])
    exact = ".".join([accel.__name__, *parts])
    for name in dict.fromkeys((exact, ours)):
        parent = name.rpartition(".")[0]
        if (not parent or hasattr(import_module(parent), "__path__")) and find_spec(name) is not None:
            return name
    raise ModuleNotFoundError(
        f"{fullname} is answered by accel under ACCEL_AS_ACCELERATE, and accel has no module {exact};"
        f" {PAGE} says what is not there and what to do instead",
        name=fullname,
    )
