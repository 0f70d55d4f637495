"""Python code in processes with other hash seeds, addresses and so other orders of sets."""

import os
import subprocess
import sys


def outputs(code: str) -> set[str]:
    """All that the code prints, in processes with two hash seeds."""
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)
    return {
        subprocess.run(
            [sys.executable, "-c", f"pad = [object() for _ in range({seed}00)]\n{code}"],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": path},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
