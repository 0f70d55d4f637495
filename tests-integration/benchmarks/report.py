"""The table, for people and for programs."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.measure import CONTROL
from benchmarks.result import Result, Spread
from benchmarks.row import Unit

HEADER = (
    *("row", "raw", "accel / raw", "accelerate / raw", "fabric / raw", CONTROL, "CPU"),
    *("target", "against", "verdict"),
)
SHOWN = ("accel", "accelerate", "fabric", CONTROL)
NOTHING = "-"
_SCALES = {
    Unit.SECONDS: ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")),
    Unit.BYTES: ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB")),
}


def quantity(value: float | None, unit: Unit) -> str:
    """Four digits and the unit that suits them."""
    if value is None:
        return NOTHING
    size, name = next((scale for scale in _SCALES[unit] if value >= scale[0]), _SCALES[unit][-1])
    return f"{value / size:.4g} {name}"


def cells(result: Result) -> tuple[str, ...]:
    """One line of the table."""
    ratios = [_ratio(result.ratios.get(name)) for name in SHOWN]
    against = f"{result.against}: {_ratio(result.to_against)}" if result.against else result.base or NOTHING
    base = quantity(result.base_median, result.unit)
    cpu = f"{result.cpu:.0%}" if result.rounds else NOTHING
    return (result.name, base, *ratios, cpu, f"{result.target:.2f}", against, result.verdict)


def notes(results: Iterable[Result]) -> list[str]:
    """What the cells have no room for: failures, absences, remarks."""
    lines = []
    for result in results:
        said = [f"{name} is absent: {why}" for name, why in result.absent.items()]
        said += [f"skipped: {result.skipped}"] if result.skipped else []
        said += [f"failed: {result.failure.strip()}"] if result.failure else []
        said += [f"compared with: {result.base}"] if result.base not in ("", "raw") else []
        said += [result.remark] if result.remark else []
        lines += [f"{result.name}: {one}" for one in said]
    return lines


def text(results: Sequence[Result]) -> str:
    """The table for a terminal."""
    lines = [HEADER, *map(cells, results)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([*table, "", *notes(results)]).rstrip() + "\n"


def markdown(results: Sequence[Result], about: dict[str, Any]) -> str:
    """The table for a document, with the machine that it is from."""
    lines = [HEADER, tuple("---" for _ in HEADER), *map(cells, results)]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    facts = "\n".join(f"* {name}: {value}" for name, value in about.items())
    said = "\n".join(f"* {line.splitlines()[0]}" for line in notes(results))
    return "\n\n".join(part for part in (table, facts, said) if part) + "\n"


def machine() -> dict[str, Any]:
    """What the numbers depend on besides the code."""
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "system": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "accel": _place("accel"),
        **{name: _version(name) for name in ("torch", "accelerate")},
    }


def write(folder: Path, results: Sequence[Result], about: dict[str, Any]) -> None:
    """Writes bench.json and bench.md; neither is ever half there."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = {"about": about, "rows": [result.facts() for result in results]}
    for name, content in {
        "bench.json": json.dumps(facts, indent=1, ensure_ascii=False) + "\n",
        "bench.md": markdown(results, about),
    }.items():
        aside = folder / f"{name}.partial"
        aside.write_text(content)
        aside.replace(folder / name)


def _ratio(spread: Spread | None) -> str:
    return NOTHING if spread is None else f"{spread.median:.3f} ({spread.low:.2f}-{spread.high:.2f})"


def _place(name: str) -> str:
    """Where it is imported from: a tree says more than the version in it."""
    spec = find_spec(name)
    return str(Path(spec.origin).parent) if spec is not None and spec.origin is not None else "not installed"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
