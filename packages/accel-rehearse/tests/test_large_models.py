"""A model that no host could hold is rehearsed on one."""

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "programs" / "llama.py"
PARAMETERS, RANKS = 70_553_706_496, 512


@pytest.mark.timeout(600)
@pytest.mark.soak(only=True)
def test_a_rehearsal_of_70_billion_parameters_takes_little_memory(rehearse: Callable[..., Any]) -> None:
    pytest.importorskip("transformers")
    found = rehearse(PROGRAM, "-n", str(RANKS), "--num_machines", "64", "--device", "h100", "--use_fsdp")
    assert found.code == 1, found.words
    assert "and its device has 76 GB for tensors" in found.words
    # parameters in float32, the states of AdamW, and rows that do not divide
    said = found.report["ranks"]["0"]
    assert 1 <= said["parameters_bytes"] / (4 * PARAMETERS / RANKS) < 1.01
    assert 2 <= said["optimizer_bytes"] / said["parameters_bytes"] < 2.01
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 4_000_000  # kilobytes of the largest process
