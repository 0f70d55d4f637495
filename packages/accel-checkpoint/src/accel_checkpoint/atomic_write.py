"""Write files that appear whole or not at all."""

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
    """Write files under temporary names, flush them to the disk, and rename them in order.

    An error before the first removal or rename leaves the folders as they were.

    Args:
        files: For each path the function that writes into the open file. The last file opens the others, such as an
            index its shards: it is renamed when all others are on the disk.
        remove_first: Files to remove before the first rename, such as the old index if old shards are replaced.
        filesystem: Disk to write to. A test gives another.

    Raises:
        OSError: The disk refuses. The message has the free bytes and what to do.
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
