"""The file a job is written to: never somebody else's, and never half written."""

import os
import tempfile
from pathlib import Path

from accel_state.errors import CannotRun

_HEAD_CHARS = 400


def target_problem(path: Path, marker: str) -> str | None:
    """Why a job must not be written there, or None; a file may be replaced only if it begins with the marker."""
    if path.is_dir():
        return f"--submit_file {path} is a folder: name a file in it"
    if not path.parent.is_dir():
        return f"--submit_file {path}: there is no folder {path.parent}; make it, or name another file"
    if not os.access(path.parent, os.W_OK):
        return f"--submit_file {path}: the folder {path.parent} cannot be written to; name a file in another one"
    if not path.exists():
        return None
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            head = file.read(_HEAD_CHARS)
    except OSError as error:
        return f"--submit_file {path} is there already and cannot be read: {error}; name another file"
    if marker in "\n".join(head.splitlines()[:2]):
        return None
    return f"{path} is there already, and accel launch has not written it; move it away, or give another --submit_file"


def write(path: Path, text: str) -> None:
    """Puts the text there at once: a reader sees the file that was there before or the whole new one.

    Raises: CannotRun if the disk or its rights are against it.
    """
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise CannotRun(f"--submit_file {path}", [f"{path} cannot be written: {error}"]) from None
    aside = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        # mkstemp makes it readable for its owner only; the job's file is to be like any other file of the user.
        mask = os.umask(0)
        os.umask(mask)
        aside.chmod(0o666 & ~mask)
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise CannotRun(f"--submit_file {path}", [f"{path} cannot be written: {error}"]) from None
