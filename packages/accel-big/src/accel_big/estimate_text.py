"""Sizes, columns and foreign names as text."""

from __future__ import annotations

from collections.abc import Sequence


def human(size: int) -> str:
    """A size in the largest unit in which it is at least 1.

    Units: bytes, with KiB of 1024.
    """
    number = float(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if number < 1024 or unit == "TiB":
            break
        number /= 1024
    return f"{size} B" if unit == "B" else f"{number:.2f} {unit}"


def printable(text: str) -> str:
    """The text without what would control a terminal: names may come from a foreign file."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """A line for each row, whose first cell is at the left of its column and all others at the right of theirs."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = (
        [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))]
        for first, *rest in rows
    )
    return ["  ".join(cells) for cells in padded]
