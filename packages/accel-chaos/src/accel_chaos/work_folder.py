"""Make a copy of a working directory for a run, so that nothing in it is overwritten."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from accel_checkpoint.manifest import is_checkpoint
from accel_state.errors import CannotRun

#: the most bytes that are copied, and bytes that each file or folder counts for besides its content
COPIED_BYTES = 1_073_741_824
FOR_EACH = 65_536
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
        CannotRun: There is too much to copy, or a shared name is missing.
    """
    links = [source / name for name in shared]
    sizes: list[int] = []
    if missing := [f"--share {link}: no such file or folder" for link in links if not link.exists()]:
        raise CannotRun("accel chaos", missing)

    def left_out(folder: str, names: list[str]) -> set[str]:
        paths = [Path(folder, name) for name in names]
        out = {path.name for path in paths if path in links or not _is_copied(path, work)}
        sizes.extend(FOR_EACH + path.stat().st_size for path in paths if path.name not in out)
        if sum(sizes) > COPIED_BYTES:
            raise CannotRun(
                "accel chaos",
                [f"more than 1 GiB or 16000 files are to be copied, as of {folder}: say --share for what is only read"],
            )
        return out

    shutil.copytree(source, work, ignore=left_out)
    for link in links:
        os.symlink(link, work / link.relative_to(source))


def _is_copied(path: Path, work: Path) -> bool:
    if not os.access(path, os.R_OK) or path.name in LEFT_OUT or work.is_relative_to(path):
        return False
    return path.is_file() or (path.is_dir() and not (path / "pyvenv.cfg").exists() and not is_checkpoint(path))


def inside(kept: Sequence[Path], path: Path) -> Path:
    """Return the place of an absolute path in a working folder.

    Args:
        kept: The working folder, and other folders in which a path stays as it is.
        path: The path.
    """
    stays = any(map(path.is_relative_to, kept))
    return path if stays else kept[0] / "outside" / path.relative_to(path.anchor)


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
            text = str(path if held and not any(map(is_checkpoint, held)) else inside([work], path))
        moved.append(f"{name}{equals}{text}")
    return moved
