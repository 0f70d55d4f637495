"""Replace the texts of files by new texts: of all files, or of none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from accel_compat.migrate.source_file import Migration


def _refusal(path: Path) -> str | None:
    """Return why a file must not be replaced, or None. A link may not lead out of the working directory or its own."""
    target, given = Path(os.path.realpath(path)), Path(os.path.abspath(path))
    tree = Path.cwd() if given.is_relative_to(Path.cwd()) else Path(os.path.realpath(given.parent))
    if not target.is_relative_to(tree):
        return f"it leads by a link to {target}, which is outside of {tree}: name that file, if it is to be rewritten"
    # to root every file is writable
    if not target.stat().st_mode & 0o222 or not os.access(target, os.W_OK):
        return "it is read-only: make it writable first, if it is to be rewritten"
    return None


def replace_files(migrations: Sequence[Migration], *, check: bool = False) -> list[str]:
    """Replace files in one step each. Links are followed, and permissions stay.

    Args:
        migrations: Files that change.
        check: Change none.

    Returns:
        The reasons against it, of all files. If there are any, no file is changed.

    Raises:
        OSError: A file system has failed between two files.
    """
    problems: list[str] = []
    ready: dict[Path, Path] = {}
    try:
        for migration in migrations:
            if (why := _refusal(migration.path)) is not None:
                problems.append(f"{migration.path}: {why}")
            if check or why is not None:
                continue
            target = Path(os.path.realpath(migration.path))
            ready[target] = target.with_name(f"{target.name}.{os.getpid()}.partial")
            try:
                ready[target].write_bytes(migration.content)
                shutil.copymode(target, ready[target])
            except OSError as error:
                problems.append(f"{migration.path}: it cannot be written: {error.strerror}")
        for target, new in ready.items() if not problems else ():
            os.replace(new, target)
    finally:
        for new in ready.values():
            new.unlink(missing_ok=True)
    return problems
