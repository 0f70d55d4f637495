"""Imports one package, and all of its modules, from a folder that holds it and what it declares."""

import importlib
import pkgutil
import sys
from pathlib import Path

# Of these, not even a module may bring torch in when it is imported.
TORCH_FREE = ("accel_comm", "accel_state", "accel_launch", "accel_submit", "accel_track", "accel_runs")
# Of these, importing the package itself must not.
LAZY = (
    *TORCH_FREE,
    "accel",
    "accel_big",
    "accel_compat",
    "accel_names",
    "accel_testing",
    "accel_verify",
    "accel_rehearse",
)


def main(name: str, folder: str) -> None:
    sys.path.insert(0, folder)
    package = importlib.import_module(name)
    found = Path(package.__file__ or "")
    if not found.is_relative_to(folder):
        raise SystemExit(f"{name} was imported from {found}, not from {folder}")
    if name in LAZY and "torch" in sys.modules:
        raise SystemExit(f"importing {name} imports torch")
    modules = [one.name for one in pkgutil.walk_packages(package.__path__, f"{name}.")]
    for module in modules:
        if not module.endswith("__main__"):
            importlib.import_module(module)
    if name in TORCH_FREE and "torch" in sys.modules:
        raise SystemExit(f"a module of {name} imports torch")
    print(f"{name}: {len(modules) + 1} modules from {found.parent.name}")


if __name__ == "__main__":
    main(*sys.argv[1:])
