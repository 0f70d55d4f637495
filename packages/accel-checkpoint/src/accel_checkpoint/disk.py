"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path


def write_whole(files: Mapping[Path, Callable[[Path], None]]) -> None:
    """Fills every file aside, flushes all of them to the disk, and only then gives them their names, in order.

    A failure before that leaves the folders as they were.
    """
    aside: dict[Path, Path] = {}
    try:
        for path, write in files.items():
            aside[path] = _new_file(path)
            write(aside[path])
            # mkstemp makes files that only the owner may read; weights are like any other file.
            aside[path].chmod(0o666 & ~_umask())
            _flush(aside[path])
        for path, whole in aside.items():
            whole.replace(path)
        for folder in {path.parent for path in aside}:
            _flush(folder)
    except BaseException:
        for whole in aside.values():
            whole.unlink(missing_ok=True)
        raise


def _new_file(path: Path) -> Path:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    os.close(handle)
    return Path(name)


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
