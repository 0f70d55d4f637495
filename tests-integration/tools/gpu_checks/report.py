"""The outcomes, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from gpu_checks.check import Fact, Outcome
from gpu_checks.processes import OUT_OF_TIME

HEADER = ("check", "result", "seconds", "why")
SEEN = ("check", "of what", "seen")


def line(outcome: Outcome) -> str:
    """The outcome in one line of a terminal, and below it why it failed."""
    first, *rest = outcome.reason.splitlines() or [""]
    head = f"{outcome.name:<24} {outcome.status:<8} {outcome.seconds:6.1f} s"
    facts = [f"     {name}: {in_short(value)}" for name, value in outcome.facts.items()]
    return "\n".join([f"{head}  {first}".rstrip(), *(f"     {words}" for words in rest), *facts])


def markdown(outcomes: Sequence[Outcome]) -> str:
    """The tables for docs/hardware.md: how each check ended, and what was seen."""
    seen = [
        (outcome.name, name, in_short(value))
        for outcome in outcomes
        for name, value in outcome.facts.items()
        if value != "ok"
    ]
    return ends(outcomes) + ("\n" + _table(SEEN, seen) if seen else "")


def ends(outcomes: Sequence[Outcome]) -> str:
    """The table of how each check ended."""
    reasons = [outcome.reason.splitlines()[0] if outcome.reason else "" for outcome in outcomes]
    return _table(
        HEADER,
        [
            (outcome.name, outcome.status, f"{outcome.seconds:.0f}", reason)
            for outcome, reason in zip(outcomes, reasons, strict=True)
        ],
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in (header, ["---"] * len(header), *cells))


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
