"""A script that is not rehearsed has nothing of this package."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "programs" / "classify.py"
RUN = """
import runpy, sys
runpy.run_path(sys.argv[1], run_name="__main__")
found = [name for name in sys.modules if name.startswith("accel_rehearse")]
assert not found, found
"""


@pytest.mark.timeout(120)
def test_a_script_that_is_not_rehearsed_imports_nothing_of_this_package(tmp_path: Path) -> None:
    words = [sys.executable, "-c", RUN, str(PROGRAM)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "ACCEL_USE_CPU": "1"})
    assert done.returncode == 0, done.stderr
