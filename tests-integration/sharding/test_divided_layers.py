"""A script whose layers the launcher divides, as a user runs it."""

import os
import subprocess
from pathlib import Path

SCRIPT = str(Path(__file__).parents[1] / "scripts" / "divided_layers.py")


def printed(python: str, *command: str) -> str:
    """What the script prints when it is started so."""
    done = subprocess.run(
        [python, *command, SCRIPT],
        env={**os.environ, "OMP_NUM_THREADS": "1", "ACCEL_USE_CPU": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_script_prints_the_same_alone_and_with_its_layers_divided(forking_python: str) -> None:
    """T10: the script has the plan, the launcher the sizes."""
    launch = ("-m", "accel_launch", "launch", "--cpu", "-n", "2", "--parallelism_config_tp_size", "2")
    alone = printed(forking_python)
    assert alone.startswith("loss ")
    assert printed(forking_python, *launch) == alone
