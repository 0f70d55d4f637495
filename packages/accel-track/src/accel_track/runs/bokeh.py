"""Draws runs as one page that needs no network."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from typing import Any

from accel_track.runs.recorded_run import RecordedRun, Series

#: rows of the table of a metric, for readers who do not see the picture
ROWS = 11
#: events of a run that are marked, with their colours
MARKS = {"restarts": "#d62728", "checkpoints": "#7f7f7f"}
STYLE = """body { font: 16px/1.4 sans-serif; max-width: 75em; margin: 1em auto; padding: 0 1em; }
table { border-collapse: collapse; margin: 1em 0; } caption { text-align: left; font-weight: bold; }
td, th { padding: 0.1em 0.8em; text-align: right; border-bottom: 1px solid #ccc; overflow-wrap: anywhere; }"""


def page(runs: Sequence[RecordedRun], metrics: Sequence[str]) -> str:
    """The page of these metrics: of each a picture, and a table with the same values at some steps."""
    from bokeh.embed import components
    from bokeh.resources import INLINE

    pictures = {f"p{number}": _picture(name, runs) for number, name in enumerate(metrics)}
    script, places = components(pictures) if pictures else ("", {})
    title = html.escape(f"Runs: {', '.join(run.name for run in runs)}")
    sections = [
        f"<section><h2>{html.escape(name)}</h2>{places[f'p{number}']}{_table(name, runs)}</section>"
        for number, name in enumerate(metrics)
    ]
    return "\n".join(
        [
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
            f"<style>{STYLE}</style>{INLINE.render()}</head><body><h1>{title}</h1>",
            "<p>Move over a line for its values. Dashed lines are restarts, dotted lines are checkpoints.</p>",
            *sections,
            f"{_events(runs)}{script}</body></html>",
        ]
    )


def _picture(name: str, runs: Sequence[RecordedRun]) -> Any:
    from bokeh.models import HoverTool
    from bokeh.palettes import Category10_10
    from bokeh.plotting import figure

    drawn = figure(height=300, sizing_mode="stretch_width", x_axis_label="step", tools="pan,box_zoom,wheel_zoom,reset")
    lines: list[Any] = []
    for place, run in enumerate(runs):
        points = run.series.get(name, {})
        values = [value if math.isfinite(value) else math.nan for value in points.values()]
        data = {"step": list(points), "value": values, "run": [run.name] * len(points)}
        colour = Category10_10[place % 10]
        line = drawn.line("step", "value", source=data, color=colour, legend_label=run.name, line_width=1.5)
        # a single point has no line
        lines += [line] if len(points) > 1 else [drawn.scatter("step", "value", source=data, color=colour)]
    tips = [("run", "@run"), ("step", "@step"), (name.replace("{", "(").replace("@", "at "), "@value{0.000000}")]
    drawn.add_tools(HoverTool(renderers=lines, tooltips=tips, mode="mouse"))
    for kind, colour in MARKS.items():
        steps = [event["step"] for run in runs for event in run.story.get(kind, [])]
        if steps:
            dash = "dashed" if kind == "restarts" else "dotted"
            drawn.vspan(x=steps, line_color=colour, line_dash=dash, legend_label=kind, name=kind)
    drawn.legend.click_policy = "hide"
    return drawn


def _table(name: str, runs: Sequence[RecordedRun]) -> str:
    steps = sorted({step for run in runs for step in run.series.get(name, {})})
    last = len(steps) - 1
    chosen = list(dict.fromkeys(steps[round(last * row / (ROWS - 1))] for row in range(ROWS))) if steps else []
    rows = [[str(step), *(_at(run.series.get(name, {}), step) for run in runs)] for step in chosen]
    return _html_table(f"{name} at some steps", ["step", *(run.name for run in runs)], rows)


def _at(points: Series, step: int) -> str:
    return f"{points[step]:.6g}" if step in points else "-"


def _events(runs: Sequence[RecordedRun]) -> str:
    rows = [row for run in runs for row in _rows_of_events(run)]
    return _html_table("Restarts and checkpoints", ["run", "what", "step"], rows) if rows else ""


def _rows_of_events(run: RecordedRun) -> Iterator[list[str]]:
    for kind in MARKS:
        for event in run.story.get(kind, []):
            yield [run.name, kind.removesuffix("s"), str(event["step"])]


def _html_table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in heads)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    top = f"<caption>{html.escape(caption)}</caption><thead><tr>{head}</tr></thead>"
    return f"<table>{top}<tbody>{body}</tbody></table>"
