"""Write runs as tables of text."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from accel_state.failure_file import printable

from accel_runs.recorded_run import RecordedRun

#: how many characters of a value a table shows
WIDTH = 48


def list_runs(runs: Sequence[RecordedRun], folder: Path) -> list[str]:
    """Return the lines of a table of runs, with the last value of the metric that most of them have.

    Args:
        runs: The runs.
        folder: Folder that was searched, for the message if there are no runs.
    """
    if not runs:
        return [
            f"no runs in {folder}: Accelerator(log_with='local', project_dir=FOLDER) leaves them in FOLDER; see --dir"
        ]
    shared = [name for name, _ in Counter(name for run in runs for name in run.series).most_common(1)]
    rows = [
        [
            run.name,
            run.state,
            run.lines[-1]["step"] if run.lines else "-",
            *(f"{points[max(points)]:.6g}" if (points := run.series.get(name)) else "-" for name in shared),
            run.metadata.get("started", "-"),
        ]
        for run in runs
    ]
    return format_table(["run", "state", "last step", *(f"last {name}" for name in shared), "started"], rows)


def show_run(run: RecordedRun) -> list[str]:
    """Return lines with the facts of a run, the last value of each metric, and the configuration."""
    metadata = run.metadata
    git = metadata.get("git") or {}
    facts = {
        "folder": str(run.folder),
        "state": run.state,
        "command": " ".join(metadata.get("command", [])),
        "processes": metadata.get("world"),
        "versions": ", ".join(f"{name} {number}" for name, number in metadata.get("versions", {}).items()),
        "commit": f"{git['commit']}{', with changes' if git['changed'] else ''}" if git else None,
        "started": metadata.get("started"),
        "ended": metadata.get("ended"),
        **{
            name: _steps(metadata.get(name.replace(" ", "_"), []))
            for name in ("restarts", "checkpoints", "skipped steps")
        },
        "tables and images": run.media,
    }
    metrics = [[name, max(points), points[max(points)]] for name, points in sorted(run.series.items())]
    configured = [[name, *_cut([_text(value)])] for name, value in run.config.items()]
    return [
        *format_table(["", run.name], [[name, value] for name, value in facts.items() if value]),
        *(["", *format_table(["metric", "step", "last value"], metrics)] if metrics else []),
        *(["", *format_table(["config", ""], configured)] if configured else []),
    ]


def compare_runs(runs: Sequence[RecordedRun]) -> list[str]:
    """Return lines with the last values of runs side by side, and the settings that differ."""
    heads = [run.name for run in runs]
    series = [{name: _text(points[max(points)]) for name, points in run.series.items()} for run in runs]
    configs = [{name: _text(value) for name, value in run.config.items()} for run in runs]
    last = _side_by_side(series)
    settings = _side_by_side(configs)
    differing = {name: texts for name, texts in settings.items() if len(set(texts)) > 1}
    same = len(settings) - len(differing)
    rows = [[name, *_cut(texts)] for name, texts in differing.items()]
    return [
        *format_table(["last value", *heads], [[name, *last[name]] for name in sorted(last)]),
        "",
        *(format_table(["config that differs", *heads], rows) if rows else ["their configurations are equal"]),
        *([f"({same} settings are equal)"] if rows and same else []),
    ]


def _side_by_side(runs: Sequence[dict[str, str]]) -> dict[str, list[str]]:
    return {name: [run.get(name, "-") for run in runs] for name in dict.fromkeys(name for run in runs for name in run)}


def _cut(texts: list[str]) -> list[str]:
    """Return texts, cut to the width of a column if they still differ then."""
    cut = [text if len(text) <= WIDTH else f"{text[:WIDTH]}..." for text in texts]
    return cut if len(set(cut)) == len(set(texts)) else texts


def _steps(events: Sequence[dict[str, Any]]) -> str:
    newest = ", ".join(str(event["step"]) for event in events[-10:])
    return f"{len(events)} (at steps {'..., ' if len(events) > 10 else ''}{newest})" if events else ""


def _text(value: Any) -> str:
    return printable(value if isinstance(value, str) else json.dumps(value))


def format_table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Return the lines of a table with aligned columns.

    Args:
        heads: Names of the columns.
        rows: The cells of each row, as texts or values.
    """
    cells = [[_text(cell) for cell in row] for row in (heads, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
