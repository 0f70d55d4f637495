"""Make one report of the notes of all ranks, as values for JSON and as a table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from math import inf

from accel_rehearse.durations import step_seconds
from accel_rehearse.hardware import Hardware, size_of
from accel_rehearse.mistakes import USABLE, Notes, mistakes_of, place_of

#: rows of the picture
ROWS = 10


def report_of(
    notes: Sequence[Notes],
    asked: Notes,
    hardware: Hardware,
    measured: re.Match[str] | None = None,
) -> Notes:
    """Return the report.

    Args:
        notes: Notes of each rank.
        asked: Number of ranks, machines and steps.
        hardware: The device of a rank.
        measured: Match of seconds of a step on one device.
    """
    if hardware.memory < inf:
        for one in notes:
            one["said"]["left_bytes"] = round(USABLE * hardware.memory) - one["said"]["peak_bytes"]
    return {
        "asked": asked,
        "ranks": {str(one["rank"]): one["said"] for one in notes},
        **notes[0]["loop"],
        "checkpoint_seconds": notes[0]["loop"]["checkpoint_bytes"] / hardware.disk or None,
        "step_seconds": max(
            (step_seconds(one["said"], hardware, measured) for one in notes), key=lambda step: step.get("high", 0)
        ),
        "mistakes": _once(mistakes_of(notes, asked["size"], hardware)),
        "refusals": _once([each for one in notes for each in one["refusals"]]),
    }


def _once(problems: Sequence[Sequence[str]]) -> list[dict[str, str]]:
    return [dict(zip(("what", "line", "remedy"), one, strict=True)) for one in dict.fromkeys(map(tuple, problems))]


def table_of(report: Notes) -> str:
    """Return a report in words and columns, with what is wrong first."""
    lines = ["{line}: {what}\n  {remedy}".format(**problem) for problem in report["refusals"] + report["mistakes"]]
    # before a step is made, what a rank takes is not known
    figures = _figures(report) if any(said["gradients_bytes"] for said in report["ranks"].values()) else ()
    return "\n".join(["accel rehearse", *lines, *figures])


def _figures(report: Notes) -> Iterator[str]:
    ranks: dict[str, Notes] = report["ranks"]
    sizes = [name for name in ranks[min(ranks)] if name.endswith("_bytes")]
    rows = [["memory", *map(_words, sizes)]]
    for rank, said in ranks.items():
        rows.append([f"rank {rank}", *(size_of(said[name]) if said[name] else "-" for name in sizes)])
    yield from ("".join(f"{cell:>16}" for cell in row) for row in rows)
    for rank, said in ranks.items():
        yield f"rank {rank}: the peak is in the {place_of(said)}; exchanges of a step:"
        for each in said["exchanges"]:
            yield "  {calls} x {name}, {}, ranks: {group_size}, machines: {machines}".format(
                size_of(each["bytes"]), **each
            )
    yield from _picture(said["memory_over_step"])
    for name, value in report.items():
        if isinstance(value, int | float):
            yield f"{_words(name)}: {size_of(value) if name.endswith('_bytes') else format(value, '.6g')}"
    if report["step_seconds"]:
        yield "a step takes {low:.3g} to {high:.3g} s, bound by {bound}: {assumed}".format(**report["step_seconds"])


def _words(name: str) -> str:
    return name.removesuffix("_bytes").replace("_", " ")


def _picture(curve: Sequence[dict[str, int]]) -> list[str]:
    """Return the memory of a rank over a step as rows of letters, each the first of a kind."""
    highest = max(sum(point.values()) for point in curve)
    stacks = ["".join(kind[0] * round(ROWS * size / highest) for kind, size in at.items()) for at in curve]
    rows = ["  " + "".join(row).rstrip() for row in zip_longest(*stacks, fillvalue=" ")]
    return [f"memory over a step, up to {size_of(highest)} ({', '.join(curve[0])})", *reversed(rows)]
