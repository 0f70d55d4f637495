"""Make a copy of a working directory for a run, so that nothing in it is overwritten."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from accel_checkpoint.manifest import is_checkpoint
from accel_state.errors import CannotRun

#: bytes and entries of a file or folder that is copied
COPIED_BYTES, COPIED_ENTRIES = 1 << 30, 20_000
#: folders that no run needs
LEFT_OUT = {".git", "__pycache__"}


def make_work_folder(source: Path, work: Path, shared: Sequence[str] = ()) -> None:
    """Fill a folder with copies of the files and folders of another, and of those that links in it lead to.

    Checkpoints, `.git`, virtual environments and what cannot be read are left out.

    Args:
        source: The folder of the user.
        work: The folder to fill, which is made.
        shared: Names of files and folders in `source` that are linked, as a run only reads them.

    Raises:
        CannotRun: Something is too large to copy, or a shared name is missing.
    """
    links = {source / os.path.normpath(name) for name in shared}
    missing = [link for link in links if not (link.is_relative_to(source) and link.exists())]
    problems = [f"--share {link}: no such file or folder in {source}" for link in missing]
    copied: list[Path] = []
    for path in sorted(source.iterdir()):
        held = list(islice(_held([path], work, links), COPIED_ENTRIES + 1))
        size = sum(one.stat().st_size for one in held if one not in links and one.is_file())
        if len(held) > COPIED_ENTRIES or size > COPIED_BYTES:
            problems.append(
                f"{path.name} has more than {COPIED_BYTES >> 20} MiB or {COPIED_ENTRIES} files, too much for a copy of"
                f" {source}: say --share {path.name} if the script only reads it, or run in place (--in_place)"
            )
        copied += held
    if problems:
        raise CannotRun("accel chaos", problems)
    work.mkdir(parents=True)
    for path in copied:
        copy = work / path.relative_to(source)
        if path in links:
            os.symlink(path, copy)
        elif path.is_dir():
            copy.mkdir()
        else:
            shutil.copy2(path, copy)


def _held(paths: Sequence[Path], work: Path, links: set[Path]) -> Iterator[Path]:
    """Yield what is copied or linked, folders before what is in them. Links count as what they lead to."""
    for path in paths:
        if not os.access(path, os.R_OK):
            continue
        if path in links or path.is_file():
            yield path
        elif path.is_dir() and not _is_left_out(path, work):
            yield path
            yield from _held(sorted(path.iterdir()), work, links)


def _is_left_out(folder: Path, work: Path) -> bool:
    environment = (folder / "pyvenv.cfg").exists()
    return folder.name in LEFT_OUT or environment or work.is_relative_to(folder) or is_checkpoint(folder)


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
