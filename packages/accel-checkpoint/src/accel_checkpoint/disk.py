"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Lets `write` fill a file aside, flushes it to the disk, and gives it its name in one step."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    os.close(handle)
    aside = Path(name)
    try:
        write(aside)
        # mkstemp makes files that only the owner may read; weights are like any other file.
        aside.chmod(0o666 & ~_umask())
        _flush(aside)
        aside.replace(path)
        _flush(path.parent)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
