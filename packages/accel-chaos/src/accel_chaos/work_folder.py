"""Make a copy of a working directory for a run, so that nothing of the user is overwritten."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from accel_checkpoint.manifest import is_checkpoint

#: bytes and files of a folder that is copied; a larger one is shared
COPIED_BYTES, COPIED_FILES = 256 << 20, 2_000
#: where outputs go that the script would put outside of its working directory
OUTSIDE = "outside"


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
        if path.name.startswith(".") or work.is_relative_to(path):
            os.symlink(path, work / path.name)
        elif _is_small(path):
            _copy(path, work / path.name)
        else:
            shared.append(path.name)
            os.symlink(path, work / path.name)
    return shared


def _is_small(path: Path) -> bool:
    size = files = 0
    for folder, names, inside_it in os.walk(path):
        names[:] = [name for name in names if not is_checkpoint(Path(folder, name))]
        for name in inside_it:
            size += os.lstat(os.path.join(folder, name)).st_size
        files += len(inside_it) + len(names)
        if size > COPIED_BYTES or files > COPIED_FILES:
            return False
    return not path.is_file() or path.stat().st_size <= COPIED_BYTES


def _copy(path: Path, to: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.copytree(path, to, symlinks=True, ignore=_checkpoints, ignore_dangling_symlinks=True)
    elif path.is_symlink():
        os.symlink(path.resolve(), to)
    elif path.is_file():
        shutil.copy2(path, to)


def _checkpoints(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if is_checkpoint(Path(folder, name))}


def inside(work: Path, path: Path) -> Path:
    """Return the place of an absolute path in a working folder: its own if it is there already."""
    return path if path.is_relative_to(work) else work / OUTSIDE / path.relative_to(path.anchor)


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
        name, equals, text = word.rpartition("=") if word.startswith("-") else ("", "", word)
        path = Path(text)
        if text.startswith(("..", "/")):
            whole = Path(os.path.normpath(source / path))
            text = str(inside(work, whole) if _is_output(whole) else whole)
        moved.append(f"{name}{equals}{text}")
    return moved


def _is_output(path: Path) -> bool:
    if not path.exists():
        return path.parent != path
    if not path.is_dir():
        return False
    held = [*path.iterdir(), *path.glob("checkpoints/*")]
    return not held or any(is_checkpoint(one) for one in held)
