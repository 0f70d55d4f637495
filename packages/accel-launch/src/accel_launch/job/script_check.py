"""Check before anything starts that a script can be started."""

import pkgutil
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path

from accel_launch.cli.launch_command import ResolvedOptions
from accel_launch.cli.suggest import did_you_mean


def script_problem(options: ResolvedOptions, cwd: Path) -> str | None:
    """Return why the script of a command line cannot be started, or None."""
    script, settings = options.script, options.settings
    if settings.module and settings.no_python:
        return "--module and --no_python were both given: SCRIPT is either a module or a program; give one of the two"
    if script is None:
        return "no script was given: accel launch [options] SCRIPT [arguments of the script]"
    check = _module_problem if settings.module else _program_problem if settings.no_python else _file_problem
    problem = check(script, cwd, options.environ)
    return f"{problem} (working directory {cwd})" if problem is not None else None


def _file_problem(script: str, cwd: Path, _: Mapping[str, str]) -> str | None:
    path = cwd / script
    if path.is_file():
        return None
    if path.is_dir():
        holds = f"; it holds {inside}" if (inside := _some(entry.name for entry in path.glob("*.py"))) else ""
        return f"script {script!r} is a directory{holds}; name the file to run, or use -m for a module"
    if not path.parent.is_dir():
        return f"script {script!r} does not exist: there is no directory {path.parent}"
    beside = [str(Path(script).with_name(entry.name)) for entry in path.parent.iterdir()]
    return f"script {script!r} does not exist{did_you_mean(script, beside)}"


def _program_problem(script: str, cwd: Path, environ: Mapping[str, str]) -> str | None:
    # execvpe looks a bare name up in PATH, and anything with a slash from the working directory.
    if shutil.which(str(cwd / script) if "/" in script else script, path=environ.get("PATH")) is not None:
        return None
    if "/" in script and (cwd / script).is_file():
        return f"program {script!r} is not executable; chmod +x it, or leave out --no_python"
    return f"program {script!r} was not found: neither in PATH, nor as a path with a slash"


def _module_problem(name: str, cwd: Path, _: Mapping[str, str]) -> str | None:
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        return f"module {name!r} is not a module name such as package.train; leave out -m to run a file"
    path: Sequence[str] = [str(cwd)]
    for full in accumulate(parts, "{}.{}".format):
        spec = PathFinder.find_spec(full, path) if "." in full else _top_level(full, cwd)
        if spec is None:
            before = full[: full.rfind(".") + 1]
            there = [f"{before}{module.name}" for module in pkgutil.iter_modules(path)]
            return f"module {full!r} was not found{did_you_mean(full, there)}"
        path = spec.submodule_search_locations or ()
        if not path and full != name:
            file = f"; leave out -m to run the file {name}" if parts[-1] == "py" else ""
            return f"module {name!r} cannot be run: {full} is not a package{file}"
    if path and PathFinder.find_spec(f"{name}.__main__", path) is None:
        modules = _some(module.name for module in pkgutil.iter_modules(path) if not module.ispkg) or "it has none"
        return (
            f"module {name!r} cannot be run: it is a package without a __main__ module; name a module in it: {modules}"
        )
    return None


def _top_level(name: str, cwd: Path) -> ModuleSpec | None:
    """Find the spec of a top-level module as `python -m` would in the working directory. Nothing is imported."""
    here = PathFinder.find_spec(name, [str(cwd)])
    if here is not None and here.origin is not None:
        return here
    with suppress(ValueError):  # of a module that is loaded but has no spec, such as __main__
        return find_spec(name) or here
    return here


def _some(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)[:5])
