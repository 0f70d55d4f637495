"""What a module of curves returns: the lines of one picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from re import fullmatch


@dataclass(frozen=True, slots=True)
class Curve:
    """One picture: what each line costs at each size; both axes are logarithmic, so every number is above zero.

    `name` is the name of its file in docs/pictures, without the ending; `x` and `y` say what the axes count, and in
    which units.
    """

    name: str
    title: str
    x: str
    y: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    #: False for what is a table only
    drawn: bool = True

    def __post_init__(self) -> None:
        if not fullmatch(r"[a-z0-9-]+", self.name):
            raise ValueError(f"curve {self.name!r}: a name has small letters, digits and '-', as it names a file")
        wrong = [one for line in self.lines.values() for one in line if min(one) <= 0]
        if not self.lines or wrong:
            raise ValueError(f"curve {self.name!r}: expected lines of numbers above zero, found {wrong or 'no line'}")

    def table(self) -> str:
        """The numbers as a table of Markdown: one row for each line, one column for each size."""
        sizes = sorted({x for line in self.lines.values() for x, _ in line})
        rows = [f"| {self.x} | {' | '.join(f'{x:,.6g}' for x in sizes)} |", f"| --- |{' --- |' * len(sizes)}"]
        for name, line in self.lines.items():
            found = dict(line)
            cells = [f"{found[x]:,.3g}" if x in found else "" for x in sizes]
            rows.append(f"| {name} | {' | '.join(cells)} |")
        return f"{self.title} ({self.y})\n\n" + "\n".join(rows) + "\n"
