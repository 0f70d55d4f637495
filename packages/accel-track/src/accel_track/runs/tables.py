"""Runs as tables of text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from accel_track.runs.recorded_run import RecordedRun

WIDTH = 48


def listing(runs: Sequence[RecordedRun], folder: Path) -> list[str]:
    """A line for each run."""
    if not runs:
        return [f'no runs in {folder}; Accelerator(log_with="local") leaves them there']
    rows = [
        [run.name, run.state, str(run.lines[-1]["step"]) if run.lines else "-", run.story.get("started", "-")]
        for run in runs
    ]
    return table(["run", "state", "last step", "started"], rows)


def shown(run: RecordedRun) -> list[str]:
    """What a run was, and the last value of each metric."""
    story = run.story
    git = story.get("git") or {}
    facts = {
        "folder": str(run.folder),
        "state": run.state,
        "command": " ".join(story.get("command", [])),
        "processes": story.get("world"),
        "versions": ", ".join(f"{name} {number}" for name, number in story.get("versions", {}).items()),
        "commit": f"{git['commit']}{', with changes' if git['changed'] else ''}" if git else None,
        "started": story.get("started"),
        "ended": story.get("ended"),
        "restarts": _steps(story.get("restarts", [])),
        "checkpoints": _steps(story.get("checkpoints", [])),
        "skipped steps": _steps(story.get("skipped_steps", [])),
    }
    lines = table(["", run.name], [[name, _text(value, 10**6)] for name, value in facts.items() if value])
    metrics = [[name, str(max(points)), _text(points[max(points)])] for name, points in sorted(run.series.items())]
    configured = [[name, _text(value)] for name, value in run.config.items()]
    return [
        *lines,
        *(["", *table(["metric", "step", "last value"], metrics)] if metrics else []),
        *(["", *table(["config", ""], configured)] if configured else []),
    ]


def comparison(runs: Sequence[RecordedRun]) -> list[str]:
    """The last values side by side, and the settings that differ."""
    names = sorted({name for run in runs for name in run.series})
    last = [[name, *(_last(run, name) for run in runs)] for name in names]
    settings = dict.fromkeys(name for run in runs for name in run.config)
    differing = [name for name in settings if len({json.dumps(run.config.get(name, _Absent)) for run in runs}) > 1]
    rows = [[name, *(_text(run.config[name]) if name in run.config else "-" for run in runs)] for name in differing]
    heads = [run.name for run in runs]
    same = len(settings) - len(differing)
    return [
        *table(["last value", *heads], last),
        "",
        *(table(["config that differs", *heads], rows) if rows else ["their configurations are equal"]),
        *([f"({same} settings are equal)"] if rows and same else []),
    ]


#: what no setting is
_Absent = ["absent", "accel"]


def _last(run: RecordedRun, name: str) -> str:
    points = run.series.get(name)
    return _text(points[max(points)]) if points else "-"


def _steps(events: Sequence[dict[str, Any]]) -> str:
    shown = ", ".join(str(event["step"]) for event in events[-10:])
    return f"{len(events)} (at steps {'..., ' if len(events) > 10 else ''}{shown})" if events else ""


def _text(value: Any, width: int = WIDTH) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
    # of a name or value that a terminal would take as an order
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= width else f"{text[: width - 3]}..."


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Rows in columns."""
    cells = [list(heads), *([_text(cell, 10**6) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heads))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
