import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from accel_testing import stretched

SCRIPT = """
import pkgutil, sys
from importlib import import_module
import accel_state

for module in pkgutil.walk_packages(accel_state.__path__, "accel_state."):
    import_module(module.name)
    print(module.name)
    if "torch" in sys.modules:
        sys.exit(f"{module.name} imports torch")
print(accel_state.detect({}).world_size)
if "torch" in sys.modules:
    sys.exit("detect imports torch")
"""


def test_importing_every_module_leaves_torch_out() -> None:
    """A login node detects its topology, and shows help, without torch."""
    path = os.pathsep.join(os.path.abspath(record) for record in sys.path if record)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={"PYTHONPATH": path}, capture_output=True, text=True, timeout=stretched(60)
    )
    assert (done.returncode, done.stderr) == (0, "")
    names = done.stdout.split()
    folder = Path(sys.modules["accel_state"].__path__[0])
    assert len(names) == len([*folder.rglob("*.py")])  # all but the package itself, and the 1 that detect found
    assert names[-1] == "1"
    assert "accel_state.run_context" in names


def test_every_public_name_is_there() -> None:
    import accel_state

    assert accel_state.__all__ == sorted(accel_state.__all__)
    for name in accel_state.__all__:
        assert not isinstance(getattr(accel_state, name), ModuleType), "a module hides the name"
