"""Python code in processes with other hash seeds, addresses and so other orders of sets."""

import contextlib
import io
import os
import subprocess
import sys


def outputs(code: str) -> set[str]:
    """All that the code prints, in this process and in one with another hash seed."""
    here = io.StringIO()
    with contextlib.redirect_stdout(here):
        exec(code, {"__name__": "__main__"})
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)
    there = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1", "PYTHONPATH": path},
        capture_output=True,
        check=True,
        text=True,
    )
    return {here.getvalue(), there.stdout}
