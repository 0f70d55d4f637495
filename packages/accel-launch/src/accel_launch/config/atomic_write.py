"""Puts a text into a file in one step: a reader sees the old text or the new one."""

import os
from pathlib import Path


def replace_text(path: Path, text: str, mode: int = 0o666) -> None:
    """Writes the text beside the path, and renames it; a link is followed, and nothing is left after an error.

    `mode` are the permissions of the file, less those that the user's mask takes.

    Raises: OSError.
    """
    target = path.resolve()
    aside = target.with_name(f"{target.name}.{os.getpid()}.partial")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, target)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
