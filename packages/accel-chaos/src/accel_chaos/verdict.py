"""Compare a run with faults with the undisturbed run, and say whether it recovered correctly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from accel_checkpoint.load import read_tensors
from accel_verify.consumption_log import ConsumptionLogError, verify

from accel_chaos.cause import find_cause
from accel_chaos.history import History, add_costs
from accel_chaos.monitor import FINAL
from accel_chaos.runner import CONSUMED
from accel_chaos.session import ScriptRun

#: how far weights may be off if sums are rounded in another order, in roundings of their dtype
ROUNDINGS = 1e4
LAST_LINES = 20
#: what is told of a fault
TOLD = ("number", "kind", "phase", "rank", "step", "seconds_to_next_step", "steps_repeated")


def judge(undisturbed: ScriptRun, disturbed: ScriptRun) -> dict[str, Any]:
    """Return the verdict on a run with faults, as JSON has it.

    Args:
        undisturbed: The run without faults.
        disturbed: The run with faults.
    """
    reference, history = History(undisturbed.folder), History(disturbed.folder)
    wanted, had = reference.samples(), history.samples()
    lost, repeated = (wanted - had).total(), (had - wanted).total()
    notes = []
    if lost and lost == repeated and not (had - wanted).keys() & wanted.keys():
        notes.append(f"{lost} samples are none of the undisturbed run: they are made anew at random")
        lost = repeated = 0
    difference, rounding = None, 0.0
    if history.ended is not None:
        difference, rounding = _difference(undisturbed.folder / FINAL, disturbed.folder / FINAL)
    resized, exact = history.resized(), reference.attempts[0].world < 3 and not history.resized()
    near = difference is not None and (resized or difference <= (0 if exact else ROUNDINGS * rounding))
    if near and difference:
        why = "what is random or counted in processes differs" if resized else "sums are rounded otherwise"
        notes.append(f"weights are off by {difference:.1e}: with such a number of processes {why}")
    if missed := len(disturbed.planned) - len(disturbed.raised):
        notes.append(f"{missed} faults were not raised: their phase did not come again in time")
    add_costs(history, disturbed.raised)
    cause = "the run with faults did not end in time (--budget): it hangs, or there are too many faults"
    if not disturbed.late:
        well = near and not lost and not repeated and disturbed.codes[-1] == 0
        cause = find_cause(reference, history, disturbed.raised, disturbed.output, well=well, exact=exact)
    return {
        "recovered": not cause,
        "faults": [{name: fault[name] for name in TOLD} for fault in disturbed.raised],
        "samples_lost": lost,
        "samples_repeated": repeated,
        "weights_equal": difference == 0,
        "weights_difference": difference,
        "cause": cause or None,
        "consumption_log": _proof(disturbed.folder / CONSUMED),
        "steps": len(reference.steps),
        "seconds": [round(undisturbed.seconds, 1), round(disturbed.seconds, 1)],
        "notes": notes,
        "printed": disturbed.output.splitlines()[-LAST_LINES:] if cause else [],
    }


def _difference(one: Path, other: Path) -> tuple[float, float]:
    """Return by how much the weights of two files differ, and their rounding, as parts of a tensor's largest number."""
    left, right = dict(read_tensors(one)), dict(read_tensors(other))
    rounding = max((torch.finfo(one.dtype).eps for one in left.values() if one.is_floating_point()), default=0.0)
    if left.keys() != right.keys():
        return float("inf"), rounding
    changed = [(value.double(), right[name]) for name, value in left.items() if not torch.equal(value, right[name])]
    return max((float((new - old).abs().max() / old.abs().max()) for old, new in changed), default=0.0), rounding


def _proof(path: Path) -> str:
    try:
        verify(path)
    except FileNotFoundError:
        return "no prepared loader has written one"
    except ConsumptionLogError as error:
        return str(error)
    return "each sample was served once"


def lines_of(verdict: dict[str, Any]) -> list[str]:
    """Return the lines that tell a verdict."""
    rows = [[name.replace("_", " ") for name in TOLD]]
    rows += [["-" if value is None else str(value) for value in fault.values()] for fault in verdict["faults"]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    off = verdict["weights_difference"]
    weights = "not there" if off is None else f"off by {off:.1e} of the largest" if off else "bit-equal"
    return [
        *("  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows),
        "  samples: {samples_lost} lost, {samples_repeated} repeated; consumption log: {consumption_log}".format(
            **verdict
        ),
        f"  final weights: {weights}",
        *(f"  note: {note}" for note in verdict["notes"]),
        *(f"  | {line}" for line in verdict["printed"]),
        "accel chaos: " + (f"did not recover: {verdict['cause']}" if verdict["cause"] else "recovered from all faults"),
    ]
