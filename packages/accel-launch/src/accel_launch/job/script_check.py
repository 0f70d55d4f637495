"""Finds out before anything starts that a script cannot be started, and says why."""

import pkgutil
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path

from accel_launch.cli.suggest import nearest


def script_problem(
    script: str | None, *, module: bool, no_python: bool, cwd: Path, environ: Mapping[str, str]
) -> str | None:
    """Why the script cannot be started, or None."""
    if module and no_python:
        return "--module and --no_python were both given: SCRIPT is either a module or a program; give one of the two"
    if script is None:
        return "no script was given: accel launch [options] SCRIPT [arguments of the script]"
    if module:
        return _module_problem(script, cwd)
    if no_python:
        return _program_problem(script, cwd, environ)
    return _file_problem(script, cwd)


def _file_problem(script: str, cwd: Path) -> str | None:
    path = cwd / script
    if path.is_file():
        return None
    where = f"(working directory {cwd})"
    if path.is_dir():
        inside = sorted(entry.name for entry in path.glob("*.py"))
        holds = f"; it holds {', '.join(inside[:5])}" if inside else ""
        return f"script {script!r} is a directory {where}{holds}; name the file to run, or use -m for a module"
    if not path.parent.is_dir():
        return f"script {script!r} does not exist: there is no directory {path.parent} {where}"
    near = nearest(path.name, [entry.name for entry in path.parent.iterdir()])
    meant = f"; did you mean {str(Path(script).with_name(near))!r}?" if near else ""
    return f"script {script!r} does not exist {where}{meant}"


def _program_problem(script: str, cwd: Path, environ: Mapping[str, str]) -> str | None:
    # execvpe looks a bare name up in PATH, and anything with a slash from the working directory.
    found = shutil.which(str(cwd / script) if "/" in script else script, path=environ.get("PATH"))
    if found is not None:
        return None
    if "/" in script and (cwd / script).is_file():
        return f"program {script!r} is not executable (working directory {cwd}); chmod +x it, or leave out --no_python"
    return f"program {script!r} was not found: neither in PATH, nor as a path with a slash from {cwd}"


def _module_problem(name: str, cwd: Path) -> str | None:
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        return f"module {name!r} is not a module name such as package.train; leave out -m to run a file"
    path: Sequence[str] | None = None
    for depth in range(len(parts)):
        full = ".".join(parts[: depth + 1])
        spec = _top_level(full, cwd) if path is None else PathFinder.find_spec(full, path)
        if spec is None:
            return _no_such_module(name, full, [str(cwd)] if path is None else path, cwd)
        path = None if spec.submodule_search_locations is None else list(spec.submodule_search_locations)
        if path is None:
            if depth < len(parts) - 1:
                file = f"; leave out -m to run the file {name}" if parts[-1] == "py" else ""
                return f"module {name!r} cannot be run: {full} is no package (working directory {cwd}){file}"
            return None
    if PathFinder.find_spec(f"{name}.__main__", path) is None:
        return (
            f"module {name!r} cannot be run: it is a package without a __main__ module (working directory {cwd});"
            f" name a module in it: {_some_modules(path or ())}"
        )
    return None


def _top_level(name: str, cwd: Path) -> ModuleSpec | None:
    """The spec of a top-level module as `python -m` in the working directory would find it; nothing is imported."""
    found = PathFinder.find_spec(name, [str(cwd)])
    if found is not None and found.origin is not None:
        return found
    try:
        installed = find_spec(name)
    except ValueError:
        # A module that is loaded but has no spec, such as __main__: it cannot be found by name.
        installed = sys.modules[name].__spec__
    return installed or found


def _no_such_module(name: str, missing: str, path: Sequence[str], cwd: Path) -> str:
    there = [module.name for module in pkgutil.iter_modules(list(path))]
    prefix, _, last = missing.rpartition(".")
    near = nearest(last, there)
    meant = f"; did you mean {f'{prefix}.{near}' if prefix else near!r}?" if near else ""
    part = "" if missing == name else f": there is no {missing!r}"
    return f"module {name!r} was not found{part} (working directory {cwd}){meant}"


def _some_modules(path: Sequence[str]) -> str:
    names = [module.name for module in pkgutil.iter_modules(list(path)) if not module.ispkg]
    return ", ".join(names[:5]) or "it has none"
