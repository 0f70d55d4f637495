"""Write a verdict as the lines of a table."""

from __future__ import annotations

from accel_chaos.verdict import Verdict


def lines_of(verdict: Verdict) -> list[str]:
    """Return the lines that tell a verdict."""
    rows = [("fault", "kind", "phase", "rank", "step", "to next step", "steps repeated")]
    for fault in verdict.faults:
        seconds = fault["seconds_to_next_step"]
        rows.append(
            (
                str(fault["number"]),
                fault["kind"],
                fault["phase"],
                str(fault["rank"]),
                str(fault["step"]),
                "none" if seconds is None else f"{seconds:.1f} s",
                "unknown" if fault["steps_repeated"] is None else str(fault["steps_repeated"]),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    table = [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    equal = "bit-equal to those of the undisturbed run"
    if not verdict.weights_equal:
        off = verdict.weights_difference
        equal = "not there" if off is None else f"off by {off:.1e} of the largest"
    count = len(verdict.faults)
    lines = [
        *table,
        f"  samples: {verdict.samples_lost} lost, {verdict.samples_repeated} repeated; consumption log:"
        f" {verdict.consumption_log}",
        f"  final weights: {equal}",
        *(f"  note: {note}" for note in verdict.notes),
    ]
    if verdict.recovered:
        return [*lines, f"accel chaos: recovered from {count} fault{'' if count == 1 else 's'}"]
    printed = [f"  | {line}" for line in verdict.printed]
    return [*lines, "  last lines:", *printed, f"accel chaos: did not recover: {verdict.cause}"]
