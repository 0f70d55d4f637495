import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from accel_testing import stretched

SCRIPT = """
import pkgutil, sys
from importlib import import_module
import accel_comm

for module in pkgutil.walk_packages(accel_comm.__path__, "accel_comm."):
    import_module(module.name)
    print(module.name)
    if "torch" in sys.modules:
        sys.exit(f"{module.name} imports torch")
"""


def test_importing_every_module_leaves_torch_out() -> None:
    """A login node reads flight recorders without torch."""
    path = os.pathsep.join(os.path.abspath(record) for record in sys.path if record)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={"PYTHONPATH": path}, capture_output=True, text=True, timeout=stretched(60)
    )
    assert (done.returncode, done.stderr) == (0, "")
    names = done.stdout.split()
    folder = Path(sys.modules["accel_comm"].__path__[0])
    assert len(names) == len([*folder.rglob("*.py")]) - 1  # all but the package itself
    assert "accel_comm.transports.torch_dist" in names


def test_every_public_name_is_there() -> None:
    import accel_comm

    assert accel_comm.__all__ == sorted(accel_comm.__all__)
    for name in accel_comm.__all__:
        assert not isinstance(getattr(accel_comm, name), ModuleType), "a module hides the name"
