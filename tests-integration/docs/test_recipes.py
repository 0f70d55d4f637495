"""The scripts under docs/examples run, on one process and on two."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from repository import ROOT

EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))
PAGE = ROOT / "docs" / "tutorials" / "recipes.md"
LAST_WORDS = {
    "averaged_weights": "epoch 2: loss",
    "contrastive": "among 32 pairs",
    "digits": "accuracy",
    "distillation": "epoch 2: divergence",
    "early_stopping": "no improvement for 2 epochs",
    "gan": "epoch 2: critic",
}
SHORTER = {"digits": ["--epochs", "1"]}


def test_the_page_shows_every_script() -> None:
    assert [path.name for path in EXAMPLES if f"(../examples/{path.name})" not in PAGE.read_text()] == []


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_recipe_runs(path: Path, processes: int, tmp_path: Path) -> None:
    """S10: what the pages show works as it is."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "ACCEL_HOME": str(tmp_path)}
    launch = [sys.executable, "-m", "accel", "launch", "--cpu", "-n", str(processes), str(path)]
    done = subprocess.run(
        [*launch, *SHORTER.get(path.stem, [])],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert LAST_WORDS[path.stem] in done.stdout
