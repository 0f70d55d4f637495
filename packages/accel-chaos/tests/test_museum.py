"""The museum: bugs of resuming that users of other libraries have met, each beside its right form."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Chaos = Callable[..., tuple[int, str, dict[str, Any]]]
MUSEUM = Path(__file__).parent / "museum"
KILLED = ("--kinds", "SIGKILL", "--at", "forward:7")
#: options by which each bug shows, and the beginning of its cause
BUGS: dict[str, tuple[tuple[str, ...], str]] = {
    "world_change": (("--kinds", "resize", "--at", "forward:5"), "samples were lost or repeated when the number of"),
    "epoch_skipped": (KILLED, "an epoch was skipped"),
    "extra_draw": (KILLED, "random numbers differ"),
    "unheard_sigterm": (("--kinds", "SIGTERM", "--at", "forward:7"), "a save that a signal asks for never came"),
    "scheduler_twice": (KILLED, "a scheduler was stepped twice"),
    "sampler_reset": (KILLED, "the sampler was reset"),
    "committed_half": (("--kinds", "SIGKILL", "--at", "save:8", "--seed", "1"), "a checkpoint was committed half"),
    "loss_scale": (("--kinds", "SIGKILL", "--at", "forward:5"), "the loss scale was forgotten"),
    "average_forgotten": (KILLED, "not saved or not loaded: the module AveragedModel"),
    "stream_anew": (KILLED, "the sampler was reset, or a stream was begun anew"),
}
#: those that the suite tries; a soak tries all
SHOWN = ("committed_half", "sampler_reset")
CASES = [pytest.param(name, marks=[] if name in SHOWN else [pytest.mark.soak(only=True)]) for name in BUGS]


def test_each_bug_is_in_the_table() -> None:
    assert {path.stem for path in MUSEUM.glob("*.py")} == BUGS.keys()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CASES)
def test_a_bug_is_caught_and_its_cause_named(name: str, chaos: Chaos) -> None:
    options, cause = BUGS[name]
    code, text, verdict = chaos("-n", "2", *options, MUSEUM / f"{name}.py")
    assert code == 1, text
    assert verdict["recovered"] is False
    assert verdict["cause"].startswith(cause), text


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.soak(only=True)) for name in BUGS])
def test_the_right_form_of_a_bug_recovers(name: str, chaos: Chaos) -> None:
    code, text, verdict = chaos("-n", "2", *BUGS[name][0], MUSEUM / f"{name}.py", "--right")
    assert (code, verdict["recovered"], verdict["cause"]) == (0, True, None), text
    assert (verdict["samples_lost"], verdict["samples_repeated"]) == (0, 0)
