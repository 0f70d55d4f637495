"""Make one report of the notes of all ranks, as values for JSON and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accel_rehearse.durations import BEST, WORST, step_seconds
from accel_rehearse.hardware import Hardware
from accel_rehearse.mistakes import mistakes_of
from accel_rehearse.sizes import size_of

Notes = dict[str, Any]
STEERS = "decide by the number of steps, or by values of the data"
_OF_RANK = (
    "parameters_bytes",
    "gradients_bytes",
    "optimizer_bytes",
    "peak_bytes",
    "peak_at",
    "peak_by_kind",
    "largest_modules",
    "evaluation_peak_bytes",
    "exchanges",
    "flops",
)


def report_of(notes: Sequence[Notes], asked: Notes, hardware: Hardware) -> Notes:
    """Return the report.

    Args:
        notes: Notes of each rank.
        asked: Number of ranks, machines and steps.
        hardware: The device of a rank.
    """
    unknown = [
        [f"a number that only the device knows decides what is done next: {text}", line, STEERS]
        for one in notes
        for line, text in one["steered"].items()
    ]
    refusals = dict.fromkeys(map(tuple, [*(each for one in notes for each in one["refusals"]), *unknown]))
    first, per_machine = notes[0], asked["size"] // asked["machines"]
    durations = [step_seconds(one, hardware, per_machine, asked["measured"]) for one in notes]
    return {
        "size": asked["size"],
        "machines": asked["machines"],
        "ranks": {str(one["rank"]): {name: one[name] for name in _OF_RANK} for one in notes},
        **first["loop"],
        "checkpoint_bytes": sum(first["whole_bytes"].values()),
        "step_seconds": max(durations, key=lambda one: one.get("high", 0)),
        "mistakes": mistakes_of(notes, asked["size"], hardware),
        "refusals": [dict(zip(("what", "line", "remedy"), one, strict=True)) for one in refusals],
    }


def table_of(report: Notes) -> str:
    """Return a report in words and columns."""
    lines = [f"accel rehearse: {report['size']} ranks on {report['machines']} machines"]
    lines += _rows("memory of a rank", report, _MEMORY)
    for rank, one in report["ranks"].items():
        at = one["peak_at"]
        lines.append(f"  rank {rank}: the peak is in the {at['phase']} of {at['module'] or 'the script'}")
    lines.append("exchanges of a step, by rank")
    for rank, one in report["ranks"].items():
        lines += [
            f"  rank {rank}: {each['calls']} x {each['name']} of {each['group_size']} ranks, {size_of(each['bytes'])}"
            for each in one["exchanges"]
        ]
    for name in ("samples_per_step", "steps_per_epoch", "epochs", "schedule_ends_at_step"):
        lines += [f"{name.replace('_', ' ')}: {report[name]}"] if report[name] is not None else []
    lines.append(f"a checkpoint has {size_of(report['checkpoint_bytes'])}")
    if seconds := report["step_seconds"]:
        lines.append(
            f"a step takes {seconds['low']:.3g} to {seconds['high']:.3g} s, bound by {seconds['bound']}: at {BEST:.0%}"
            f" to {WORST:.0%} of the device's rate, {seconds['exchange']:.3g} s of exchange hidden behind it or not"
        )
    for problem in report["mistakes"] + report["refusals"]:
        lines.append(f"{problem['line'] or 'the job'}: {problem['what']}\n  {problem['remedy']}")
    return "\n".join(lines)


_MEMORY = {
    "parameters": "parameters_bytes",
    "gradients": "gradients_bytes",
    "optimizer": "optimizer_bytes",
    "peak": "peak_bytes",
    "peak of evaluation": "evaluation_peak_bytes",
}


def _rows(title: str, report: Notes, keys: dict[str, str]) -> list[str]:
    ranks = report["ranks"].values()
    lines = [f"{title:24}" + "".join(f"{'rank ' + one:>14}" for one in report["ranks"])]
    return lines + [f"  {name:22}" + "".join(f"{size_of(one[key]):>14}" for one in ranks) for name, key in keys.items()]
