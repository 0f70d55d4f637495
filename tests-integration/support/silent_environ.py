"""An environment for commands of tests."""

import os
import sys
from pathlib import Path

SILENT = ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH")


def silent(folder: Path) -> dict[str, str]:
    """An environment without settings or ranks, in which this source tree is importable and no GPU is seen."""
    environ = {name: os.environ[name] for name in SILENT if name in os.environ}
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)
    return {**environ, "PYTHONPATH": path, "ACCEL_HOME": str(folder / "no-config"), "CUDA_VISIBLE_DEVICES": ""}
