"""Import modules of a test session in a worker that may not find them by name."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType


def same_file(origin: str | None, source: str) -> bool:
    """Return True if a module was found in a file."""
    try:
        return origin is not None and os.path.samefile(origin, source)
    except OSError:
        return False


def _by_name(name: str) -> ModuleSpec | None:
    try:
        return find_spec(name)
    except (ImportError, ValueError):
        return None


def _load(name: str, source: str) -> None:
    spec = spec_from_file_location(name, source)
    if spec is None or spec.loader is None:
        raise ImportError(f"module {name!r} cannot be loaded from {source}: expected a Python file")
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def _ensure_package(name: str, folder: Path) -> None:
    """Make sure that a package is in `sys.modules`: pickle cannot find a.b without a, and so pytest makes one too."""
    if name in sys.modules:
        return
    parent = name.rpartition(".")[0]
    if parent:
        _ensure_package(parent, folder.parent)
    if _by_name(name) is not None:
        import_module(name)
    elif (folder / "__init__.py").exists():
        _load(name, str(folder / "__init__.py"))
    else:
        package = sys.modules[name] = ModuleType(name)
        package.__path__ = [str(folder)]


def ensure_module(name: str, source: str) -> None:
    """Make sure that `sys.modules[name]` is the module of the file `source`, executed at most once per worker.

    Raises:
        ImportError: The file is no Python module.
    """
    # multiprocessing has already made __main__ out of the script of the parent
    if name == "__main__" or (name in sys.modules and same_file(vars(sys.modules[name]).get("__file__"), source)):
        return
    by_name = _by_name(name)
    # a test file called test_x may share its name with another on the path: the file decides
    if by_name is not None and same_file(by_name.origin, source):
        import_module(name)
        return
    folder, parent = Path(source).parent, name.rpartition(".")[0]
    if parent:
        _ensure_package(parent, folder.parent if Path(source).name == "__init__.py" else folder)
    _load(name, source)
