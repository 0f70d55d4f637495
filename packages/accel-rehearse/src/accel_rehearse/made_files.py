"""List what a script makes in a rehearsal, and remove it at the end."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

#: the file in which ranks list what the script makes
MADE = "made"


def made_in(file: Path) -> list[Path]:
    """Return what a file lists."""
    return [Path(line) for line in file.read_text().splitlines()]


def remove_made(file: Path) -> None:
    """Remove what a file lists and is still there. A folder in which something else is stays."""
    for path in sorted(made_in(file), key=lambda path: len(path.parts), reverse=True):
        with suppress(OSError):
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink()
