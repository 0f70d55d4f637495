"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from accel_checkpoint.filesystem import not_written


def atomic_write(files: Mapping[Path, Callable[[Path], None]], *, remove_first: Iterable[Path] = ()) -> None:
    """Fills every file aside, flushes all of them to the disk, and only then gives them their names, in order.

    `remove_first` goes just before the first name is given: what opens files of which some are now replaced. The last
    name, which opens the new ones, is given when all others are on the disk. A failure before the first removal or name
    leaves the folders as they were.

    Raises: OSError with how much room there is, and what to do.
    """
    aside: dict[Path, Path] = {}
    try:
        for path, write in files.items():
            aside[path] = _new_file(path)
            _fill(path, aside[path], write)
            # mkstemp makes files that only the owner may read; weights are like any other file.
            aside[path].chmod(0o666 & ~_umask())
            _flush(aside[path])
        outdated = [path for path in remove_first if path.exists()]
        for path in outdated:
            path.unlink()
        _flush_folders(outdated)
        *before, opens = aside.items()
        for path, whole in before:
            whole.replace(path)
        _flush_folders(path for path, _ in before)
        path, whole = opens
        whole.replace(path)
        _flush_folders([path])
    except BaseException:
        for whole in aside.values():
            whole.unlink(missing_ok=True)
        raise


def _fill(path: Path, aside: Path, write: Callable[[Path], None]) -> None:
    try:
        write(aside)
    except OSError as error:
        raise not_written(error, path) from error


def _new_file(path: Path) -> Path:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    os.close(handle)
    return Path(name)


def _flush_folders(paths: Iterable[Path]) -> None:
    for folder in {path.parent for path in paths}:
        _flush(folder)


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
