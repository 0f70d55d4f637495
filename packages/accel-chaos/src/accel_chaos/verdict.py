"""Compare a run with faults with the undisturbed run, and say whether it recovered correctly."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from accel_checkpoint.load import read_tensors
from accel_verify.consumption_log import ConsumptionLogError, verify

from accel_chaos.cause import find_cause
from accel_chaos.history import History, costs
from accel_chaos.monitor import FINAL
from accel_chaos.runner import CONSUMED
from accel_chaos.session import Run

#: how far weights may be off if sums are rounded in another order, in roundings of their dtype
ROUNDINGS = 1e4


@dataclass
class Verdict:
    """What became of a run with faults.

    Args:
        recovered: True if the run ended as the undisturbed run did.
        faults: The faults, with what each cost.
        samples_lost: Number of samples that the committed history lacks.
        samples_repeated: Number of samples that it has too often.
        weights_equal: True if the final weights are bit-equal.
        weights_difference: By how much they differ, as a part of the largest number of a tensor; None without them.
        cause: The likely cause if it did not recover.
        consumption_log: What the consumption log proves, in words.
        steps: Number of optimizer steps of the undisturbed run.
        seconds: How long both runs took.
        printed: The last lines that were printed, if it did not recover.
        notes: What else the user should know.
    """

    recovered: bool
    faults: list[dict[str, Any]]
    samples_lost: int
    samples_repeated: int
    weights_equal: bool
    weights_difference: float | None
    cause: str | None
    consumption_log: str
    steps: int
    seconds: list[float]
    printed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the verdict as JSON has it."""
        return asdict(self)


def judge(undisturbed: Run, disturbed: Run, *, planned: int) -> Verdict:
    """Return the verdict on a run.

    Args:
        undisturbed: The run without faults.
        disturbed: The run with faults.
        planned: Number of faults that were planned.
    """
    reference, history = History(undisturbed.folder), History(disturbed.folder)
    difference = weights_difference(undisturbed.folder / FINAL, disturbed.folder / FINAL) if history.ended else None
    proof, proved = _proof(disturbed.folder / CONSUMED)
    lost = (reference.consumed - history.consumed).total()
    repeated = (history.consumed - reference.consumed).total()
    notes = []
    if lost == repeated and lost and proved and _is_augmented(reference, history):
        notes.append(f"{lost} samples have other contents than in the undisturbed run: they are made anew at random")
        lost = repeated = 0
    resized = any(attempt.world != reference.world for attempt in history.attempts)
    exact = reference.world < 3 and not resized
    tolerance = 0.0 if exact or not history.ended else ROUNDINGS * _rounding(undisturbed.folder / FINAL)
    near = difference is not None and difference <= tolerance
    if near and difference:
        why = "another number of processes adds" if resized else "three or more processes add"
        notes.append(f"weights are off by {difference:.1e}, as {why} gradients in another order")
    cause = None
    if disturbed.late:
        cause = "the run with faults did not end within its time (--budget): it hangs, or there are too many faults"
    else:
        cause = find_cause(reference, history, disturbed.raised, near=near, lost=lost, repeated=repeated)
        if cause is None and not history.ended:
            cause = f"the script ended with exit code {disturbed.codes[-1]}, and no fault had been raised in that start"
    recovered = history.ended and disturbed.codes[-1] == 0 and near and not lost and not repeated and cause is None
    if not recovered and cause is None:
        cause = "unknown: the final weights differ, and no state that was looked at differs before"
    if (missing := planned - len(disturbed.raised)) > 0:
        notes.append(f"{missing} of {planned} faults were not raised: their phase did not come again in time")
    return Verdict(
        recovered=recovered,
        faults=costs(history, disturbed.raised),
        samples_lost=lost,
        samples_repeated=repeated,
        weights_equal=difference == 0,
        weights_difference=difference,
        cause=cause,
        consumption_log=proof,
        steps=len(reference.steps),
        seconds=[round(undisturbed.seconds, 1), round(disturbed.seconds, 1)],
        printed=[] if recovered else disturbed.output.splitlines()[-20:],
        notes=notes,
    )


def weights_difference(one: Path, other: Path) -> float | None:
    """Return by how much the weights of two files differ, as a part of the largest number of each tensor.

    Returns:
        The largest part; 0 if all are bit-equal, infinity if names or shapes differ, None if a file is not there.
    """
    if not (one.exists() and other.exists()):
        return None
    left, right = dict(read_tensors(one)), dict(read_tensors(other))
    if {name: tensor.shape for name, tensor in left.items()} != {name: tensor.shape for name, tensor in right.items()}:
        return float("inf")
    return max((_difference(tensor, right[name]) for name, tensor in left.items()), default=0.0)


def _difference(left: torch.Tensor, right: torch.Tensor) -> float:
    if left.dtype == right.dtype and torch.equal(left, right):
        return 0.0
    wide, other = left.double(), right.double()
    largest = float(wide.abs().max()) or 1.0
    part = float((wide - other).abs().max()) / largest
    # bit patterns that differ and compare as equal, as those of two nans
    return part if part > 0 else (float("inf") if part != part else torch.finfo(torch.float64).tiny)


def _rounding(path: Path) -> float:
    dtypes = {tensor.dtype for _, tensor in read_tensors(path) if tensor.is_floating_point()}
    return max((torch.finfo(dtype).eps for dtype in dtypes), default=0.0)


def _proof(path: Path) -> tuple[str, bool]:
    """Return what a consumption log proves in words, and whether it proves that each sample was served once."""
    try:
        verify(path)
    except FileNotFoundError:
        return "no prepared loader has written one", False
    except ConsumptionLogError as error:
        return str(error).partition("\n")[2], False
    return "each sample was served once", True


def _is_augmented(reference: History, history: History) -> bool:
    """Return whether the samples that the undisturbed run did not have are none of its samples at another place."""
    return not (history.consumed - reference.consumed).keys() & reference.consumed.keys()
