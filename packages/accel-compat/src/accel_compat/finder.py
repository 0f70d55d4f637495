"""Answer every import of `accelerate` and its modules by accel, and the questions for its metadata."""

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
    from types import CodeType, ModuleType
    from typing import Any
else:
    ModuleType = type(sys)

UPSTREAM = "accelerate"
#: the release of Accelerate whose names accel answers, which is what programs are told
VERSION = "1.15.0"
PAGE = "docs/guides/programs-for-accelerate.md"
#: modules of Accelerate with those of its parts that the module itself answers here
_WHOLE = {
    "utils": "ao bnb deepspeed megatron_lm rich torch_xla tqdm transformer_engine",
    "test_utils": "examples testing training",
}
_COMMANDS = f"{UPSTREAM}.commands."
#: modules that Python runs after -m, and that are the command line here
_PROGRAMS = ("accelerate_cli", "config.__main__", "env")
#: modules of commands that have another name than the command
_NAMED = {"estimate": "estimate-memory", "merge": "merge-weights", "to_fsdp2": "to-fsdp2", "tpu": "tpu-config"}


def install() -> None:
    """Let accel answer every later `import accelerate` of this process, and of processes that it starts.

    Raises:
        ImportError: Accelerate itself, or a part of it, is imported already.
    """
    if any(isinstance(finder, AliasFinder) for finder in sys.meta_path):
        return
    parts = [
        module for name, module in [*sys.modules.items()] if name.partition(".")[0] == UPSTREAM and module is not None
    ]
    for imported in parts[:1]:
        place = getattr(imported, "__file__", None) or "an unknown place"
        raise ImportError(
            f"accel_compat.install(): accelerate is imported already, from {place}, and modules hold its names;"
            " call install() before the first import of accelerate, or of a library that imports it;"
            " accel launch --as_accelerate does so",
            name=UPSTREAM,
        )
    sys.meta_path.insert(0, AliasFinder())
    os.environ["ACCEL_AS_ACCELERATE"] = "1"


class AliasFinder:
    """A finder of `accelerate` and its modules in accel, and of a distribution `accelerate` that is not installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of an alias for a module of Accelerate, or None for any other module.

        If accel has no such module, the result is None as well, with a warning. Helpers of tests are Accelerate's own,
        if it is installed too.

        Args:
            fullname: Name of the module.
            path: Not used.
            target: Not used.
        """
        if fullname.partition(".")[0] != UPSTREAM:
            return None
        from importlib.util import find_spec

        if (helper := _helper_of_tests(fullname)) is not None:
            return helper
        ours = answer_for(fullname)
        if ours is None:
            import warnings

            words = f"there is no {fullname.replace(UPSTREAM, 'accel', 1)}; {PAGE} says what to do instead"
            warnings.warn(f"{fullname} is answered by accel under ACCEL_AS_ACCELERATE, and {words}", stacklevel=2)
            return None
        found = find_spec(ours)
        package = found is not None and found.submodule_search_locations is not None
        return ModuleSpec(fullname, AliasLoader(ours), is_package=package)  # type: ignore[arg-type] # its base is slow

    def find_distributions(self, context: DistributionFinder.Context) -> Iterable[Distribution]:
        """Return the metadata of `accelerate`, if the question is for it or for all distributions on `sys.path`."""
        if list(context.path) != sys.path:
            return []
        if context.name is not None and context.name.lower() != UPSTREAM:
            return []
        from accel_compat.distribution import AliasDistribution

        return [AliasDistribution()]

    def invalidate_caches(self) -> None:
        """Do nothing, as there are no caches."""


class AliasLoader:
    """A loader that makes the alias of a module of accel.

    Args:
        ours: Name of the module.
    """

    def __init__(self, ours: str) -> None:
        self._ours = ours

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Import the module, and return an alias of it."""
        return Alias(spec.name, import_module(self._ours))

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing, as the module behind the alias has run."""

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code that `python -m` runs for a module below accelerate.commands, or None for other modules."""
        if not fullname.startswith(_COMMANDS):
            return None
        word = fullname.removeprefix(_COMMANDS).removesuffix(".__main__")
        given = [] if word == "accelerate_cli" else [_NAMED.get(word, word)]
        program = (
            f"import sys; from accel_launch.cli.program import main; raise SystemExit(main([*{given}, *sys.argv[1:]]))"
        )
        return compile(program, f"<{fullname}>", "exec")


class Alias(ModuleType):
    """A module under a name of Accelerate, whose attributes are those of a module of accel.

    Args:
        name: Name of Accelerate's module.
        target: Module of accel.
    """

    def __init__(self, name: str, target: ModuleType) -> None:
        super().__init__(name, target.__doc__)
        self.__dict__.update(_target=target, _has_module={})
        if hasattr(target, "__path__"):
            self.__dict__["__path__"] = []  # or Python would import accel's files a second time by it

    def __getattr__(self, name: str) -> Any:
        if name == "__version__" and self.__name__ == UPSTREAM:
            return VERSION
        target = self.__dict__["_target"]
        if name == "__all__":
            return target.__dict__.get("__all__") or [word for word in dir(target) if not word.startswith("_")]
        if not name.startswith("_") and (submodule := self._submodule(name)) is not None:
            return submodule
        _, *parts = target.__name__.split(".")
        if len(parts) > 1 and parts[0] in _WHOLE and not hasattr(target, name):
            target = import_module(target.__name__.rpartition(".")[0])
        try:
            return getattr(target, name)
        except AttributeError:
            from accel_names.lazy_names import stand_in, table

            # Accelerate has them there alone
            if name not in table().stand_ins or not self.__name__.startswith((f"{UPSTREAM}.utils", _COMMANDS)):
                raise
            return stand_in(name, table().stand_ins[name])

    def __setattr__(self, name: str, value: object) -> None:
        dunder = name.startswith("__") and name.endswith("__")
        if dunder or (isinstance(value, ModuleType) and value.__name__ == f"{self.__name__}.{name}"):
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
        """Return the alias of a submodule, as a program may read `accelerate.utils` without an import, or None."""
        target, known = self.__dict__["_target"], self.__dict__["_has_module"]
        if name in target.__dict__ and not isinstance(target.__dict__[name], ModuleType):
            return None
        if name not in known:
            from importlib.util import find_spec

            known[name] = hasattr(target, "__path__") and find_spec(f"{target.__name__}.{name}") is not None
        return import_module(f"{self.__name__}.{name}") if known[name] else None


def _helper_of_tests(fullname: str) -> ModuleSpec | None:
    """Return the spec of a module below accelerate.test_utils in an installed Accelerate, or None."""
    parts = fullname.split(".")
    if parts[1:2] != ["test_utils"]:
        return None
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec(UPSTREAM)
    for count in range(2, len(parts) + 1):
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(".".join(parts[:count]), spec.submodule_search_locations)
    return spec


def answer_for(fullname: str) -> str | None:
    """Return the module of accel that answers a module of Accelerate, or None."""
    from importlib.util import find_spec

    import accel

    if fullname.removeprefix(_COMMANDS) in _PROGRAMS:
        return "accel_launch.cli.program"
    parts = fullname.split(".")[1:]
    names = [".".join([accel.__name__, *parts])]
    if len(parts) == 2 and parts[1] in _WHOLE.get(parts[0], "").split():
        names.append(f"{accel.__name__}.{parts[0]}")
    for name in names:
        try:
            if find_spec(name) is not None:
                return name
        except ModuleNotFoundError as error:  # what is above it is no package, or is not there
            if not (error.name or "").startswith(f"{accel.__name__}."):
                raise
    return None
