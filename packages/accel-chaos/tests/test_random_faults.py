"""Random faults of every kind lose nothing, and the weights are those of a quiet run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Chaos = Callable[..., tuple[int, str, dict[str, Any]]]
SCRIPT = Path(__file__).parent / "recovering.py"


@pytest.mark.soak(only=True)
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("sharded", [False, True], ids=["ddp", "fsdp2"])
@pytest.mark.parametrize("size", [2, 4])
def test_a_hundred_random_faults_lose_nothing(size: int, sharded: bool, chaos: Chaos) -> None:
    """A1 of issue 35, with checkpoints on the disk each five steps."""
    words = ["--epochs", "100", "--workers", "1", *(["--sharded"] if sharded else [])]
    told = ("-n", str(size), "--faults", "100", "--seed", "35", "--budget", "50m", SCRIPT, *words)
    code, text, verdict = chaos(*told)
    assert (code, verdict["cause"]) == (0, None), text
    assert (verdict["samples_lost"], verdict["samples_repeated"]) == (0, 0)
    assert verdict["weights_difference"] < 1e-12
    assert len(verdict["faults"]) >= 90
    assert max(fault["steps_repeated"] for fault in verdict["faults"]) <= 5


@pytest.mark.timeout(300)
def test_random_faults_of_every_kind_lose_nothing(chaos: Chaos) -> None:
    words = (SCRIPT, "--epochs", "4", "--workers", "1", "--sharded")
    code, text, verdict = chaos("-n", "2", "--faults", "4", "--seed", "6", *words)
    assert (code, verdict["cause"]) == (0, None), text
    assert (verdict["samples_lost"], verdict["samples_repeated"]) == (0, 0)
    assert verdict["weights_difference"] < 1e-12
