"""Make a copy of a working directory for a run, so that nothing of the user is overwritten."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from accel_checkpoint.manifest import is_checkpoint

#: bytes and files of a folder that is copied; a larger one is shared
COPIED_BYTES, COPIED_FILES = 256 << 20, 2_000


def make_work_folder(source: Path, work: Path) -> list[str]:
    """Fill a folder with copies of the files of another, without checkpoints and without hidden files.

    Args:
        source: The folder of the user.
        work: The folder to fill, which is made.

    Returns:
        The names of large files and folders, which are linked and not copied.
    """
    work.mkdir(parents=True)
    shared = []
    for path in sorted(source.iterdir()):
        hidden = path.name.startswith(".") or work.is_relative_to(path)
        if hidden or not _is_small(path):
            shared += [] if hidden else [path.name]
            os.symlink(path, work / path.name)
        elif path.is_dir():
            shutil.copytree(path, work / path.name, symlinks=True, ignore=_checkpoints)
        else:
            shutil.copy2(path, work / path.name)
    return shared


def _is_small(path: Path) -> bool:
    files = list(islice(path.rglob("*"), COPIED_FILES + 1))
    return len(files) <= COPIED_FILES and sum(file.lstat().st_size for file in [path, *files]) <= COPIED_BYTES


def _checkpoints(folder: str | Path, names: list[str]) -> set[str]:
    return {name for name in names if is_checkpoint(Path(folder, name))}


def inside(work: Path, path: Path) -> Path:
    """Return the place of an absolute path in a working folder: its own if it is there already."""
    return path if path.is_relative_to(work) else work / "outside" / path.relative_to(path.anchor)


def moved_arguments(arguments: Sequence[str], source: Path, work: Path) -> list[str]:
    """Return the arguments of a script, of which those that name folders for output lead into the working folder.

    These are the absolute paths of a folder that is missing, is empty or has checkpoints. Other paths that lead out of
    the working directory become absolute.

    Args:
        arguments: The arguments.
        source: The working directory of the user.
        work: The working folder of the run.
    """
    moved = []
    for word in arguments:
        name, equals, text = word.rpartition("=")
        if text.startswith(("..", "/")):
            path = Path(os.path.normpath(source / text))
            held = [path] if path.is_file() else [*path.glob("*"), *path.glob("checkpoints/*")]
            text = str(path if held and not any(map(is_checkpoint, held)) else inside(work, path))
        moved.append(f"{name}{equals}{text}")
    return moved
