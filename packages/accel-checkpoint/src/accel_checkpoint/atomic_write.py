"""Writes files that appear whole or not at all."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import BinaryIO

from accel_checkpoint.filesystem import Filesystem, explain


def atomic_write(
    files: Mapping[Path, Callable[[BinaryIO], None]],
    *,
    remove_first: Iterable[Path] = (),
    filesystem: Filesystem | None = None,
) -> None:
    """Writes all files under temporary names, flushes them to the disk, and then renames them in order.

    The last file opens the others, such as an index its shards: it is renamed when all others are on the disk. If some
    of the others replace old files, `remove_first` names the old index: it is removed before the first rename. An error
    before the first removal or rename leaves the folders as they were.

    Raises: OSError that tells the free bytes and what to do.
    """
    filesystem = filesystem or Filesystem()
    temporary: dict[Path, Path] = {}
    try:
        for path, fill in files.items():
            temporary[path] = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
            try:
                with filesystem.create(temporary[path]) as file:
                    fill(file)
            except OSError as error:
                raise OSError(error.errno, f"{path} could not be written {explain(error, path.parent)}") from error
        outdated = [path for path in remove_first if path.exists()]
        for path in outdated:
            filesystem.remove(path)
        _flush_folders(filesystem, outdated)
        *others, last = files
        for paths in (others, [last]):
            for path in paths:
                filesystem.rename(temporary[path], path)
            _flush_folders(filesystem, paths)
    except BaseException:
        for path in temporary.values():
            path.unlink(missing_ok=True)
        raise


def _flush_folders(filesystem: Filesystem, paths: Iterable[Path]) -> None:
    for folder in {path.parent for path in paths}:
        filesystem.flush_folder(folder)
