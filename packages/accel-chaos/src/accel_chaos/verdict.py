"""Compare a run with faults with the undisturbed run, and say whether it recovered correctly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from accel_checkpoint.load import read_tensors
from accel_verify.consumption_log import ConsumptionLogError, verify

from accel_chaos.cause import find_cause
from accel_chaos.history import add_costs
from accel_chaos.monitor import FINAL
from accel_chaos.runner import CONSUMED
from accel_chaos.session import ScriptRun

#: how far weights may be off if sums are rounded in another order, in roundings of their dtype: 9e-13 in float64
ROUNDINGS = 4096
#: what is told of a consumption log without a flaw
PROVED = "each sample was served once"
#: what is told of a fault, and how wide it is printed
TOLD = {"number": 8, "kind": 17, "phase": 15, "rank": 6, "step": 6, "seconds_to_next_step": 22, "steps_repeated": 0}


def judge(undisturbed: ScriptRun, like: ScriptRun, disturbed: ScriptRun) -> dict[str, Any]:
    """Return the verdict on a run with faults, as JSON has it.

    Args:
        undisturbed: The run without faults.
        like: The run whose weights are expected: that one, or one without faults that was resized as the disturbed one.
        disturbed: The run with faults.
    """
    expected = like.history
    history = disturbed.history
    add_costs(history.attempts, disturbed.raised)
    every, had, wanted = undisturbed.history.samples(), history.samples(), expected.samples()
    # the order may be another after a resize, and so may be what `drop_last` leaves out: less than a step each epoch
    if (
        _proof(like.folder / CONSUMED) != PROVED
        or len(expected.starts) != len(undisturbed.history.starts)
        or (every.total() - wanted.total()) * len(expected.steps) > wanted.total() * len(expected.starts)
    ):
        wanted = every
    off = None
    if history.ended and expected.ended:
        off, rounding = _difference(like.folder / FINAL, disturbed.folder / FINAL)
    # two numbers have one sum
    exact = disturbed.processes < 3
    cause = "a run did not end in time (--budget): the one with faults hangs, or there are too many faults"
    if not (disturbed.late or like.late):
        cause = find_cause(
            wanted,
            expected,
            history,
            disturbed.raised,
            well=off is not None
            and off <= (0 if exact else ROUNDINGS * rounding)
            and had == wanted
            and disturbed.codes[-1] == 0,
            exact=exact,
        )
    return {
        "recovered": not cause,
        "faults": [{name: fault[name] for name in TOLD} for fault in disturbed.raised],
        "faults_not_raised": len(disturbed.planned) - len(disturbed.raised),
        "samples_lost": (wanted - had).total(),
        "samples_repeated": (had - wanted).total(),
        "samples_left_out": (every - wanted).total(),
        "weights_equal": off == 0,
        "weights_difference": off,
        "resized_after": history.resizes,
        "cause": cause or None,
        "consumption_log": _proof(disturbed.folder / CONSUMED),
        "printed": disturbed.printed if cause else [],
    }


def _difference(one: Path, other: Path) -> tuple[float, float]:
    """Return by how much the weights of two files differ, and their rounding, as parts of a tensor's largest number."""
    right = dict(read_tensors(other))
    pairs = [(old, right[name]) for name, old in read_tensors(one)]
    rounding = max(torch.finfo(old.dtype).eps for old, _ in pairs if old.is_floating_point())
    off = [float((new - old.double()).abs().max() / old.abs().max()) for old, new in pairs if not torch.equal(old, new)]
    return max(off, default=0.0), rounding


def _proof(path: Path) -> str:
    try:
        if any(one.first for one in verify(path)):
            return "an epoch was served from its middle on, and nothing says what was before"
    except (FileNotFoundError, ConsumptionLogError) as error:
        return str(error)
    return PROVED


def lines_of(verdict: dict[str, Any]) -> list[str]:
    """Return the lines that tell a verdict."""
    off = verdict["weights_difference"]
    weights = "not there" if off is None else f"off by {off:.1e} of the largest" if off else "bit-equal"
    return [
        *(
            "  " + "".join(f"{row[name]!s:{width}}" for name, width in TOLD.items())
            for row in [{name: name for name in TOLD}, *verdict["faults"]]
        ),
        "  samples: {samples_lost} lost, {samples_repeated} repeated, {samples_left_out} left out in place of others\n"
        "  consumption log: {consumption_log}\n"
        "  final weights: {weights}, in comparison with a run without faults\n"
        "  resized after steps: {resized_after}; faults that were not raised: {faults_not_raised}".format(
            weights=weights, **verdict
        ),
        *(f"  | {line}" for line in verdict["printed"]),
        "accel chaos: " + (f"did not recover: {verdict['cause']}" if verdict["cause"] else "recovered from all faults"),
    ]
