"""A script that is not rehearsed has nothing of this package."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "programs" / "classify.py"
LAUNCH = ["-m", "accel", "launch", "--cpu", "-n", "2"]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("start", [[], LAUNCH], ids=["alone", "launched"])
def test_a_script_that_is_not_rehearsed_imports_nothing_of_this_package(start: list[str], tmp_path: Path) -> None:
    # Python says of each import of a process, and of those that it starts, how long it took
    environ = {**os.environ, "ACCEL_USE_CPU": "1", "PYTHONPROFILEIMPORTTIME": "1"}
    words = [sys.executable, *start, str(PROGRAM)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=environ)
    assert done.returncode == 0, done.stderr
    assert "epoch 2:" in done.stdout
    assert done.stderr.count(" accel.collectives") == (2 if start else 1), done.stderr
    assert "accel_rehearse" not in done.stderr
