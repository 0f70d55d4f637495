"""One script, three launchers, one result: that of a hand-written loop in one process."""

import os
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accel_testing import assert_same_numbers
from cases import CASES, EPOCHS, SAMPLES, by_hand, case_name

SCRIPT = Path(__file__).parents[1] / "scripts" / "equal_weights.py"
LAUNCHERS = {
    "python": [],
    "torchrun": ["-m", "torch.distributed.run", "--nproc-per-node", "2"],
    "accel launch": ["-m", "accel_launch", "launch", "--cpu", "-n", "2"],
}
Trained = Callable[[str, dict[str, Any]], dict[str, Any]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, forking_python: str) -> Trained:
    """What each launcher's run of the script wrote; every launcher runs once."""
    folders: dict[str, Path] = {}

    def results(launcher: str, case: dict[str, Any]) -> dict[str, Any]:
        if launcher not in folders:
            folder = tmp_path_factory.mktemp(launcher.replace(" ", "-"))
            environ = {**os.environ, "OMP_NUM_THREADS": "1"}
            done = subprocess.run(
                [forking_python, *LAUNCHERS[launcher], str(SCRIPT), str(folder)],
                env=environ,
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stderr
            folders[launcher] = folder
        found: dict[str, Any] = torch.load(folders[launcher] / f"{case_name(case)}.pt", weights_only=True)
        return found

    return results


@pytest.mark.parametrize("case", CASES, ids=case_name)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_final_weights_equal_those_of_a_plain_loop(launcher: str, case: dict[str, Any], trained: Trained) -> None:
    """S1, S2, S46, S48, S100: python, torchrun and accel launch give what one process gives with the global batch."""
    weights, served = by_hand(case["shuffle"], case["optimizer_name"])
    found = trained(launcher, case)
    assert_same_numbers(found["weights"], weights, atol=1e-9)
    assert [sorted(epoch) for epoch in found["served"]] == [list(range(SAMPLES))] * EPOCHS
    if case["shuffle"]:
        assert len({tuple(epoch) for epoch in found["served"]}) == EPOCHS, "epochs have one order"
    assert found["served"] == served, "over all ranks, in rank order, the batches are those of the plain loop"


def test_the_loop_of_the_script_is_short() -> None:
    """S3: a script gains five lines."""
    source = SCRIPT.read_text().split("for _ in range(EPOCHS):")[1].split("return")[0]
    assert len([line for line in source.splitlines() if line.strip()]) <= 12


def test_the_launchers_are_the_ones_that_are_installed() -> None:
    """S7, S9: the command is on the path where the package is installed."""
    command = Path(sysconfig.get_path("scripts")) / "accel"
    if not command.exists():
        pytest.skip("the packages run from a bare tree")
    done = subprocess.run([str(command), "--version"], capture_output=True, text=True, check=True)
    assert "0." in done.stdout
