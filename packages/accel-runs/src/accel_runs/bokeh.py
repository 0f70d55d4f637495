"""Draw runs as a page that needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accel_runs.recorded_run import RecordedRun

#: rows of the table of a metric, for readers who do not see the picture
ROWS = 11
#: events of a run that are marked, with the colours and the dashes of their lines
MARKS = {"restarts": ("#d62728", "dashed"), "checkpoints": ("#7f7f7f", "dotted")}
PAGE = """{% macro table(caption, heads, rows) %}<table><caption>{{ caption }}</caption>
<thead><tr>{% for head in heads %}<th scope="col">{{ head }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>{% endfor %}</tbody></table>
{% endmacro %}<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Runs: {{ names|join(", ") }}</title>
<style>body { font: 16px/1.4 sans-serif; max-width: 75em; margin: 1em auto; padding: 0 1em; }
table { border-collapse: collapse; margin: 1em 0; } caption { text-align: left; font-weight: bold; }
td, th { padding: 0.1em 0.8em; text-align: right; border-bottom: 1px solid #ccc; overflow-wrap: anywhere; }</style>
{{ library|safe }}</head><body><h1>Runs: {{ names|join(", ") }}</h1>
<p>Move over a line for its values. Dashed lines are restarts, dotted lines are checkpoints.</p>
{% for name, rows in metrics.items() %}<section><h2>{{ name }}</h2>{{ divs[loop.index0]|safe }}
{{ table(name ~ " at some steps", ["step"] + names, rows) }}</section>{% endfor %}
{% if events %}{{ table("Restarts and checkpoints", ["run", "what", "step"], events) }}{% endif %}
{{ script|safe }}</body></html>
"""


def render_page(runs: Sequence[RecordedRun], metrics: Sequence[str]) -> str:
    """Return a page of HTML with a picture of each metric, and a table of its values at some steps.

    Args:
        runs: The runs to draw.
        metrics: Names of the metrics.
    """
    from bokeh.embed import components
    from bokeh.resources import Resources
    from jinja2 import Environment

    script, divs = components([_picture(name, runs) for name in metrics]) if metrics else ("", [])
    events = [
        [run.name, kind.removesuffix("s"), event["step"]]
        for run in runs
        for kind in MARKS
        for event in run.metadata.get(kind, [])
    ]
    return (
        Environment(autoescape=True)
        .from_string(PAGE)
        .render(
            names=[run.name for run in runs],
            library=Resources(mode="inline", components=["bokeh"]).render(),  # without what this page does not use
            metrics={name: _rows(name, runs) for name in metrics},
            divs=divs,
            events=events,
            script=script,
        )
    )


def _picture(name: str, runs: Sequence[RecordedRun]) -> Any:
    import numpy as np
    from bokeh.models import HoverTool
    from bokeh.palettes import Category10_10
    from bokeh.plotting import figure

    drawn = figure(height=300, sizing_mode="stretch_width", x_axis_label="step", tools="pan,box_zoom,wheel_zoom,reset")
    lines: list[Any] = []
    for index, run in enumerate(runs):
        points = run.series.get(name, {})
        values = np.array(list(points.values()), dtype=float)
        values[np.isinf(values)] = np.nan
        # arrays are sent as bytes, which a browser reads many times faster than lists
        data = {"step": np.array(list(points), dtype=float), "value": values}
        draw: Any = drawn.line if len(points) > 1 else drawn.scatter  # a single point has no line
        lines.append(
            draw("step", "value", source=data, color=Category10_10[index % 10], legend_label=run.name, name=run.name)
        )
    tips = [("run", "$name"), ("step", "@step{0}"), (name.replace("{", "(").replace("@", "at "), "@value{0.000000}")]
    drawn.add_tools(HoverTool(renderers=lines, tooltips=tips, mode="mouse"))
    for kind, (colour, dash) in MARKS.items():
        if steps := [event["step"] for run in runs for event in run.metadata.get(kind, [])]:
            drawn.vspan(x=steps, line_color=colour, line_dash=dash, legend_label=kind, name=kind)
    drawn.legend.click_policy = "hide"
    return drawn


def _rows(name: str, runs: Sequence[RecordedRun]) -> list[list[Any]]:
    """Return the values of all runs at some steps."""
    series = [run.series.get(name, {}) for run in runs]
    steps = sorted({step for points in series for step in points})
    chosen = dict.fromkeys(steps[round((len(steps) - 1) * row / (ROWS - 1))] for row in range(ROWS)) if steps else {}
    return [[step, *(f"{points[step]:.6g}" if step in points else "-" for points in series)] for step in chosen]
