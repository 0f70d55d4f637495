"""Random faults of every kind lose nothing, and the weights are those of a run without faults."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from accel_chaos.faults import KINDS

Chaos = Callable[..., tuple[int, str, dict[str, Any]]]
SCRIPT = Path(__file__).parent / "recovering.py"
#: checkpoints in memory alone, but for what a signal asks for
IN_MEMORY = ("--memory_checkpoint_every", "5", SCRIPT, "--save_every", "0", "--workers", "1")


@pytest.mark.soak(only=True)
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("sharded", [False, True], ids=["ddp", "fsdp2"])
@pytest.mark.parametrize("size", [2, 4])
def test_a_hundred_random_faults_lose_nothing(size: int, sharded: bool, chaos: Chaos) -> None:
    """A1 of issue 35."""
    words = ["--epochs", "50", *(["--sharded"] if sharded else [])]
    code, text, verdict = chaos("-n", size, "--faults", "100", "--seed", "35", "--budget", "55", *IN_MEMORY, *words)
    assert (code, verdict["cause"]) == (0, None), text
    assert (verdict["samples_lost"], verdict["samples_repeated"]) == (0, 0)
    assert verdict["weights_difference"] <= (1e-12 if size > 2 else 0)
    assert verdict["faults_not_raised"] == 0
    assert {fault["kind"] for fault in verdict["faults"]} == KINDS.keys()
    most = 10
    for fault in verdict["faults"]:
        # five, and those that were made while a copy was under way
        assert fault["steps_repeated"] <= most, text
        # five more for each checkpoint that a fault has cost
        most = most + 5 if fault["phase"] in ("save", "rename") and not fault["steps_repeated"] else 10


@pytest.mark.timeout(300)
def test_random_faults_lose_nothing(chaos: Chaos) -> None:
    code, text, verdict = chaos("-n", "2", "--faults", "4", "--seed", "6", *IN_MEMORY, "--epochs", "4", "--sharded")
    assert (code, verdict["cause"]) == (0, None), text
    assert (verdict["samples_lost"], verdict["samples_repeated"]) == (0, 0)
    assert verdict["weights_equal"]


@pytest.mark.timeout(300)
def test_a_resized_run_is_judged_by_one_without_faults_of_the_same_samples(chaos: Chaos) -> None:
    """The shuffle has no generator: another count of numbers for dropout draws another order of the next epoch."""
    options = ("--kinds", "resize,exception", "--at", "step:9", "--faults", "2")
    code, text, verdict = chaos("-n", "2", *options, SCRIPT, "--epochs", "3", "--samples", "100", "--dropout", "0.1")
    assert (code, verdict["cause"]) == (0, None), text
    assert (verdict["samples_lost"], verdict["samples_repeated"]) == (0, 0)
    assert 0 < verdict["samples_left_out"] <= 2 * 4
    assert f"{verdict['samples_left_out']} left out in place of others" in text
    assert {fault["kind"] for fault in verdict["faults"]} == {"resize", "exception"}
    assert len(verdict["resized_after"]) == 1
    assert verdict["weights_equal"], text
