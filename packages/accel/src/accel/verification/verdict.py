"""Runs the script as plain PyTorch against a recording, and says in words what came of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from accel.verification.calm import calm
from accel.verification.checker import Checker
from accel.verification.compare import Differs
from accel.verification.plain import plain_pytorch
from accel.verification.plain_loader import CannotVerify
from accel.verification.record import Recording
from accel.verification.stopping import Enough, Limit

#: what comes near a kink in float32, such as zero before a ReLU, may lie beyond it in half precision
HALF = 0.2
#: matrix units of accelerators may round float32
ACCELERATOR = 5e-3
CPU = 1e-4


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether nothing differs, and the lines that say so."""

    same: bool
    lines: tuple[str, ...]


def verdict(script: Callable[[], None], folder: Path, steps: int, tolerance: float | None = None) -> Verdict:
    """What comes of the script as plain PyTorch, given the recording of the same script as configured."""
    recording = Recording(folder)
    why_not = _nothing_to_compare(recording)
    if why_not is not None:
        return Verdict(False, (f"accel verify: {why_not}",))
    end, limit = recording.ends[0], Limit(steps)
    half = end.precision != "no"
    allowed = tolerance if tolerance is not None else HALF if half else CPU if end.device == "cpu" else ACCELERATOR
    checker = Checker(recording, allowed, half=half, limit=limit)
    try:
        with calm(), plain_pytorch(checker, recording.ranks), suppress(Enough):
            script()
        checker.finish()
    except Differs as difference:
        return Verdict(False, (f"accel verify: {difference}", *_notes(checker)))
    except CannotVerify as reason:
        return Verdict(False, (f"accel verify: cannot compare: {reason}",))
    if limit.made == limit.skipped:
        return Verdict(False, (f"accel verify: fp16 skipped all {limit.made} steps of the script",))
    return Verdict(True, _same(checker, steps))


def _nothing_to_compare(recording: Recording) -> str | None:
    end = recording.ends[0]
    if not end.optimizers:
        return "the script prepared no optimizer: accelerator.prepare(model, optimizer, loader) is what is verified"
    if not recording.events:
        return "the script ended without a step of a prepared optimizer"
    if not end.loaders and recording.ranks > 1:
        return (
            f"the script prepared no DataLoader, so each of the {recording.ranks} processes has data of its own, which"
            " plain PyTorch in one process cannot serve"
        )
    if not any(recording.event(number)[0].losses for number in range(1, recording.events + 1)):
        return "the script never called accelerator.backward(loss), which is what shares gradients out"
    return None


def _same(checker: Checker, steps: int) -> tuple[str, ...]:
    recording, found = checker.recording, checker.found
    ranks = f", and the same on {recording.ranks} ranks" if recording.ranks > 1 else ""
    short = "" if checker.limit.reached else f" (the script ended before the {steps} that were asked for)"
    return (
        f"accel verify: nothing differs in {checker.limit.made - checker.limit.skipped} optimizer steps{short}",
        f"  losses: off by {found.loss:.1e} at most",
        f"  gradients: off by {found.gradient:.1e} of each parameter's largest at most ({checker.tolerance:.0e} is"
        f" tolerated){ranks}",
        f"  parameters after each step: off by {found.step:.1e} of the step at most{ranks}",
        "  learning rates and dtypes: equal; a save and load round trip changes nothing",
        *_notes(checker),
    )


def _notes(checker: Checker) -> list[str]:
    skipped = ", ".join(map(str, checker.found.skipped))
    return [f"  of steps that were due both runs skipped number {skipped}: fp16 overflowed"] if skipped else []
