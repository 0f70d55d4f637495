"""Whether a checkpoint is whole: every file that its manifest names, by size and by hash."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path

import torch

from accel_checkpoint.errors import CheckpointError
from accel_checkpoint.manifest import Manifest, open_regular, read_manifest
from accel_checkpoint.medium import Tally
from accel_checkpoint.tensorfile import TensorFile, content

Tensors = dict[str, torch.Tensor]

#: bytes that are read and hashed at a time: they stay in the cache of a processor in between
PIECE = 1 << 19


@dataclass(frozen=True, slots=True)
class Checked:
    """Files that were read: what is wrong with them, and the tensors of those that were to be kept."""

    problems: list[str]
    tensors: dict[str, Tensors]


def check(
    folder: Path,
    manifest: Manifest,
    names: Iterable[str] | None = None,
    *,
    keep: Collection[str] = (),
    progress: Callable[[int], None] | None = None,
) -> Checked:
    """Reads the files of a checkpoint, or those named, and finds each that is not what was written.

    The tensors of the files in `keep` are those that the hash was taken of, in memory of their own: what becomes of
    the file does not touch them. `progress` hears how many bytes were read. Units: bytes.
    """
    chosen = sorted(manifest.files if names is None else names, key=lambda name: -manifest.files[name].size)
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        read = pool.map(lambda name: _read(folder, manifest, name, name in keep, progress), chosen)
        found = dict(zip(chosen, read, strict=True))
    problems = sorted(one for one in found.values() if isinstance(one, str))
    return Checked(problems, {name: one for name, one in found.items() if isinstance(one, dict)})


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
    return check(folder, manifest, names, progress=progress).problems


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


def _read(
    folder: Path, manifest: Manifest, name: str, keep: bool, progress: Callable[[int], None] | None
) -> str | Tensors | None:
    """What is wrong with a file; or its tensors, where they are to be kept and it has some."""
    path, expected = folder / name, manifest.files[name]
    for above in path.relative_to(folder).parents:
        if (folder / above).is_symlink() and above != Path():
            return f"{folder / above} is a link"
    try:
        descriptor = open_regular(path)
    except CheckpointError as error:
        return str(error)
    tally = Tally()
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        size = os.fstat(descriptor).st_size
        if size != expected.size:
            return f"{path} has {size:,} bytes: {expected.size:,} were written"
        kept = _allocated(path) if keep else None
        try:
            for place in chain(_places(size, kept or {}), repeat(memoryview(bytearray(PIECE)))):
                count = 0
                while count < len(place) and (more := file.readinto(place[count:])):
                    count += more
                tally.add(place[:count])
                if progress is not None:
                    progress(count)
                if count < len(place):
                    break
        except OSError as error:
            return f"{path} cannot be read: {error}"
    return kept if tally.sum() == expected else f"{path} is damaged: its content is not what was written"


def _allocated(path: Path) -> Tensors | None:
    try:
        return TensorFile(path).allocate()
    except CheckpointError:  # the hash tells whether it is damaged
        return None


def _places(size: int, kept: Tensors) -> Iterator[memoryview]:
    """Where each part of a file of tensors goes, in the order of the file."""
    if kept:
        yield memoryview(bytearray(size - sum(one.nbytes for one in kept.values())))
    for tensor in kept.values():
        if tensor.numel():
            whole = content(tensor)
            for start in range(0, len(whole), PIECE):
                yield whole[start : start + PIECE]
