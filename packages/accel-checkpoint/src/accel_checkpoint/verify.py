"""Whether a checkpoint is whole: every file that its manifest names, by size and by hash."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from xxhash import xxh3_128

from accel_checkpoint.errors import CheckpointError
from accel_checkpoint.manifest import Manifest, open_regular, read_manifest

PIECE = 1 << 20


def damage(
    folder: Path,
    manifest: Manifest,
    names: Iterable[str] | None = None,
    *,
    progress: Callable[[int], None] | None = None,
) -> list[str]:
    """What is wrong with the files of a checkpoint, or with those named; nothing if each is what was written.

    `progress` hears how many bytes were read. Units: bytes.
    """
    chosen = sorted(manifest.files if names is None else names, key=lambda name: -manifest.files[name].size)
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        found = pool.map(lambda name: _damage_of(folder, manifest, name, progress), chosen)
        return sorted(one for one in found if one is not None)


def is_whole(folder: Path) -> bool:
    """Whether a folder is a committed checkpoint: its manifest is right, and each file as long as it says."""
    try:
        manifest = read_manifest(folder)
        for name, one in manifest.files.items():
            descriptor = open_regular(folder / name)
            try:
                if os.fstat(descriptor).st_size != one.size:
                    return False
            finally:
                os.close(descriptor)
    except (CheckpointError, OSError):
        return False
    return True


def _damage_of(folder: Path, manifest: Manifest, name: str, progress: Callable[[int], None] | None) -> str | None:
    path, expected = folder / name, manifest.files[name]
    for above in path.relative_to(folder).parents:
        if (folder / above).is_symlink() and above != Path():
            return f"{folder / above} is a link"
    try:
        descriptor = open_regular(path)
    except CheckpointError as error:
        return str(error)
    digest, buffer = xxh3_128(), bytearray(PIECE)
    view = memoryview(buffer)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        size = os.fstat(descriptor).st_size
        if size != expected.size:
            return f"{path} has {size:,} bytes: {expected.size:,} were written"
        try:
            while count := file.readinto(buffer):
                digest.update(view[:count])
                if progress is not None:
                    progress(count)
        except OSError as error:
            return f"{path} cannot be read: {error}"
    return None if digest.hexdigest() == expected.xxh3 else f"{path} is damaged: its content is not what was written"
