"""The cells of docs/examples/notebook.ipynb run in their order."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from accel_testing import stretched
from repository import ROOT
from silent_environ import silent

NOTEBOOK = ROOT / "docs" / "examples" / "notebook.ipynb"


@pytest.mark.timeout(600)
def test_the_notebook_runs(forking_python: str, tmp_path: Path) -> None:
    """As in a kernel: the code has no file, and its functions live in __main__."""
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    code = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    # the kernel alone is forked: processes of a notebook look at their parents
    code = f"import sys; sys.executable = {sys.executable!r}\n{code}"
    done = subprocess.run(
        [forking_python, "-c", code],
        cwd=tmp_path,
        env={**silent(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=stretched(500),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "[0, 1] of 2" in done.stdout
    together, alone = map(float, re.findall(r"(\d\.\d+) on", done.stdout))
    assert abs(together - alone) <= 0.002


def test_the_notebook_has_no_outputs() -> None:
    """Outputs would grow old, and a reader could not tell."""
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert [cell["id"] for cell in cells if cell.get("outputs")] == []
