"""The outcomes, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from gpu_checks.check import Fact, Outcome
from gpu_checks.processes import OUT_OF_TIME

HEADER = ("check", "result", "seconds", "seen")


def line(outcome: Outcome) -> str:
    """The outcome in one line of a terminal, and below it why it failed."""
    first, *rest = outcome.reason.splitlines() or [""]
    head = f"{outcome.name:<24} {outcome.status:<8} {outcome.seconds:6.1f} s"
    facts = [f"     {name}: {in_short(value)}" for name, value in outcome.facts.items()]
    return "\n".join([f"{head}  {first}".rstrip(), *(f"     {words}" for words in rest), *facts])


def markdown(outcomes: Sequence[Outcome]) -> str:
    """The table for docs/hardware.md."""
    rows = [HEADER, tuple("---" for _ in HEADER)]
    for outcome in outcomes:
        seen = [f"{name} {in_short(value)}" for name, value in outcome.facts.items()]
        reason = [outcome.reason.splitlines()[0]] if outcome.reason else []
        cells = (outcome.name, outcome.status, f"{outcome.seconds:.0f}", "; ".join(reason + seen))
        rows.append(tuple(cell.replace("|", "\\|").replace("\n", " ") for cell in cells))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def not_run(outcomes: Sequence[Outcome]) -> list[str]:
    """The names of the checks for which no time was left."""
    return [outcome.name for outcome in outcomes if outcome.reason == OUT_OF_TIME]


def in_short(value: Fact) -> str:
    """The fact in three digits, if it is a measure."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def write(folder: Path, outcomes: Sequence[Outcome], name: str) -> None:
    """Writes `name`.json and `name`.md into the folder; neither is ever half there."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = json.dumps([asdict(outcome) for outcome in outcomes], indent=1, ensure_ascii=False) + "\n"
    for suffix, content in {".json": stored, ".md": markdown(outcomes)}.items():
        aside = folder / f"{name}{suffix}.partial"
        aside.write_text(content)
        aside.replace(folder / f"{name}{suffix}")
