"""Make one report of the notes of all ranks, as values for JSON and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accel_rehearse.hardware import Hardware

Notes = dict[str, Any]


def report_of(notes: Sequence[Notes], asked: Notes, hardware: Hardware) -> Notes:
    """Return the report.

    Args:
        notes: Notes of each rank.
        asked: Number of ranks, machines and steps.
        hardware: The device of a rank.
    """
    refusals = [{"rank": one["rank"], **one["refusal"]} for one in notes if "refusal" in one]
    steered: dict[str, str] = {line: text for one in notes for line, text in one["steered"].items()}
    refusals += [
        {
            "what": f"a number that only the device knows decides what is done next: {text}",
            "line": line,
            "remedy": "decide by the number of steps, or on values of the data",
        }
        for line, text in steered.items()
    ]
    first = notes[0]
    return {
        "size": asked["size"],
        "machines": asked["machines"],
        "ranks": {str(one["rank"]): one for one in notes},
        **{name: first["loop"][name] for name in ("samples_per_step", "steps_per_epoch", "schedule_ends_at_step")},
        "mistakes": [],
        "refusals": refusals,
    }


def table_of(report: Notes, hardware: Hardware) -> str:
    """Return the report in words and columns.

    Args:
        report: The report.
        hardware: The device of a rank.
    """
    lines = [f"accel rehearse: {report['size']} ranks on {report['machines']} machines"]
    lines += _rows("memory of a rank", report, _MEMORY)
    for rank, one in report["ranks"].items():
        at = one["peak_at"]
        lines.append(f"  rank {rank}: the peak is in the {at['phase']} of {at['module'] or 'the script'}")
    lines.append("exchanges of a step, by rank")
    for rank, one in report["ranks"].items():
        lines += [
            f"  rank {rank}: {each['calls']} x {each['name']} among {each['group_size']} ranks, {size_of(each['bytes'])}"
            for each in one["exchanges"]
        ]
    known = {name: value for name in ("samples_per_step", "steps_per_epoch", "schedule_ends_at_step") if (value := report[name])}
    lines += [f"{name.replace('_', ' ')}: {value}" for name, value in known.items()]
    for problem in report["mistakes"] + report["refusals"]:
        lines.append(f"{problem['line'] or 'the job'}: {problem['what']}")
        lines += [f"  {problem['remedy']}"] if problem.get("remedy") else []
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
    lines = [f"{title:24}" + "".join(f"{'rank ' + str(one['rank']):>14}" for one in ranks)]
    return lines + [
        f"  {name:22}" + "".join(f"{size_of(one[key]):>14}" for one in ranks) for name, key in keys.items()
    ]


def size_of(count: float) -> str:
    """Return bytes in words, such as 1.5 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
