"""Compare the files of a checkpoint with the sizes and hashes in its manifest."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import FileIO
from itertools import chain, repeat
from pathlib import Path

import torch

from accel_checkpoint.errors import CheckpointError
from accel_checkpoint.filesystem import FileDigest, file_sizes
from accel_checkpoint.manifest import Manifest, open_regular, read_manifest
from accel_checkpoint.tensor_file import TensorFile, view_bytes

Tensors = dict[str, torch.Tensor]

#: bytes that are read and hashed at a time: few enough to stay in the cache of a processor
PIECE = 1 << 19


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """The problems of the files that were read, and the tensors of the files to keep, by the name of the file."""

    problems: list[str]
    tensors: dict[str, Tensors]


def verify(
    folder: Path,
    manifest: Manifest,
    names: Iterable[str] | None = None,
    *,
    keep: Collection[str] = (),
) -> VerifyResult:
    """Read files of a checkpoint, and list those that differ from the manifest.

    Args:
        folder: The checkpoint.
        manifest: Its manifest.
        names: Files to read. By default all.
        keep: Files whose tensors are returned. They come from the read that was hashed, and stay as they are if the
            file changes later.
    """
    chosen = sorted(manifest.files if names is None else names, key=lambda name: -manifest.files[name].size)
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        results = pool.map(lambda name: _read(folder, manifest, name, name in keep), chosen)
        by_name = dict(zip(chosen, results, strict=True))
    problems = sorted(result for result in by_name.values() if isinstance(result, str))
    return VerifyResult(problems, {name: result for name, result in by_name.items() if isinstance(result, dict)})


def require_whole(folder: Path, manifest: Manifest, names: Iterable[str] | None = None) -> None:
    """Raise if files of a checkpoint differ from the manifest.

    Args:
        folder: The checkpoint.
        manifest: Its manifest.
        names: Files to read. By default all.

    Raises:
        CheckpointError: A file differs. The message lists every one.
    """
    problems = verify(folder, manifest, names).problems
    if problems:
        raise CheckpointError(f"the checkpoint {folder} is damaged:\n  " + "\n  ".join(problems))


def is_whole(folder: Path) -> bool:
    """Return whether a folder is a committed checkpoint: its manifest is valid, and each file has the size in it."""
    try:
        files, sizes = read_manifest(folder).files, file_sizes(folder)
    except (CheckpointError, OSError):
        return False
    return all(sizes.get(name) == file.size for name, file in files.items())


def _read(folder: Path, manifest: Manifest, name: str, keep: bool) -> str | Tensors | None:
    """Return the problem of a file, or its tensors if `keep` is set and the file has some."""
    path, expected = folder / name, manifest.files[name]
    for parent in path.relative_to(folder).parents:
        if (folder / parent).is_symlink() and parent != Path():
            return f"{folder / parent} is a link"
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size != expected.size:
                return f"{path} has {size:,} bytes: {expected.size:,} were written"
            kept = _allocate(path) if keep else None
            digest = FileDigest.of(_fill(file, chain(_buffers(size, kept or {}), repeat(memoryview(bytearray(PIECE))))))
    except CheckpointError as error:
        return str(error)
    except OSError as error:
        return f"{path} cannot be read: {error}"
    return kept if digest == expected else f"{path} is damaged: its content is not what was written"


def _fill(file: FileIO, buffers: Iterable[memoryview]) -> Iterator[memoryview]:
    """Read a file into buffers until it ends, and yield what was read into each."""
    for buffer in buffers:
        count = 0
        while count < len(buffer) and (more := file.readinto(buffer[count:])):
            count += more
        yield buffer[:count]
        if count < len(buffer):
            return


def _allocate(path: Path) -> Tensors | None:
    try:
        return TensorFile(path).allocate()
    except CheckpointError:  # the hash tells if the file is damaged
        return None


def _buffers(size: int, kept: Tensors) -> Iterator[memoryview]:
    """Yield the memory into which each part of a file is read, in its order: its header, then its tensors."""
    if kept:
        yield memoryview(bytearray(size - sum(tensor.nbytes for tensor in kept.values())))
    for tensor in kept.values():
        if tensor.numel():
            memory = view_bytes(tensor)
            for start in range(0, len(memory), PIECE):
                yield memory[start : start + PIECE]
