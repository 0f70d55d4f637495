"""Draws a curve as an SVG that is the same file for the same numbers."""

from __future__ import annotations

from pathlib import Path

from scale.curve import Curve


def draw(curve: Curve, folder: Path) -> Path:
    """The picture of a curve, in a file of its name."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    # no random names and no date in the file; text stays text, so that it can be found
    with matplotlib.rc_context({"svg.hashsalt": curve.name, "svg.fonttype": "none", "font.size": 9}):
        figure, axes = pyplot.subplots(figsize=(6.4, 3.6), layout="constrained")
        for mark, (name, line) in zip("osv^Dx*P<>" * 2, curve.lines.items(), strict=False):
            xs, ys = zip(*sorted(line), strict=True)
            axes.plot(xs, ys, marker=mark, markersize=4, linewidth=1.2, label=name)
        sizes = sorted({x for line in curve.lines.values() for x, _ in line})
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(sizes, [f"{x:,.6g}" for x in sizes])
        axes.minorticks_off()
        axes.set_title(curve.title)
        axes.set_xlabel(curve.x)
        axes.set_ylabel(curve.y)
        axes.grid(visible=True, alpha=0.3)
        axes.legend(frameon=False)
        place = folder / f"{curve.name}.svg"
        figure.savefig(place, format="svg", metadata={"Date": None})
        pyplot.close(figure)
    return place
