"""The examples that resume recover: `accel chaos` gives no false alarm."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Chaos = Callable[..., tuple[int, str, dict[str, Any]]]
EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
#: the examples that resume under `accel launch`, and what makes them short
RESUMING = {
    "averaged_weights.py": ("--epochs", "3"),
    "causal_lm.py": ("--epochs", "2"),
    "long_context.py": ("--epochs", "2", "--length", "256"),
    "preemptible.py": ("--epochs", "2"),
}


def test_each_example_that_resumes_is_in_the_table() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py") if ".resume()" in path.read_text()} == RESUMING.keys()


@pytest.mark.soak(only=True)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", RESUMING)
def test_an_example_that_resumes_recovers(name: str, chaos: Chaos) -> None:
    """A4 of issue 35; no `resize`, as a step of most has another number of samples then."""
    kinds = "SIGKILL,SIGSTOP,SIGTERM,segfault,out-of-memory,full-disk,exception"
    code, text, verdict = chaos("-n", "2", "--faults", "5", "--kinds", kinds, EXAMPLES / name, *RESUMING[name])
    assert (code, verdict["cause"]) == (0, None), text
    assert verdict["weights_equal"]
