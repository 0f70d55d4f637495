"""Write sizes and columns as text."""

from __future__ import annotations

from collections.abc import Sequence


def human(size: int | None) -> str:
    """Return a size in the largest unit in which it is at least 1, or "-" for None.

    Units:
        Bytes; a KiB has 1024.
    """
    if size is None:
        return "-"
    number = float(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if number < 1024 or unit == "TiB":
            break
        number /= 1024
    return f"{size} B" if unit == "B" else f"{number:.2f} {unit}"


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a line for each row, whose first cell is at the left of its column and all others at the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = (
        [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))]
        for first, *rest in rows
    )
    return ["  ".join(cells) for cells in padded]
