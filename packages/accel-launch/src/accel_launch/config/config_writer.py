"""Save a config file: all of it or nothing, and never so that others could change it."""

import os
from collections.abc import Mapping
from pathlib import Path

from accel_state.errors import CannotRun

from accel_launch.cli.options import BY_KEY

HEADER = "# Settings of accel launch. `accel config show --origin` tells which value wins, and why.\n"
MODE = 0o644


def file_text(values: Mapping[str, object], path: Path) -> str:
    """Return the text of a file with values by option name, in the order of the options: JSON if the path says so."""
    content = {key: _plain(values[option.name]) for key, option in BY_KEY.items() if option.name in values}
    if path.suffix == ".json":
        import json

        return json.dumps(content, indent=2) + "\n"
    import yaml

    return HEADER + (yaml.safe_dump(content, sort_keys=False, allow_unicode=True) if content else "")


def _plain(value: object) -> object:
    """Return a value as people write it: a flag or a number among pairs is no text."""
    if isinstance(value, Mapping):
        return {name: _plain(word) for name, word in value.items()}
    if value in ("true", "false"):
        return value == "true"
    # read back, a number is the same text only without leading zeros
    return int(value) if isinstance(value, str) and value.isdecimal() and str(int(value)) == value else value


def write_config(path: Path, text: str, *, like: Path | None = None) -> None:
    """Save a text at a path in one step.

    Args:
        path: Path to write to; its folder is made if it is missing. Only the owner may write to the file.
        text: Text to write.
        like: File whose permissions to read the new file gets. Default: the file that is there.

    Raises:
        CannotRun: It cannot be written. The file from before is untouched.
    """
    model = like or path
    try:
        path.resolve().parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, text, model.stat().st_mode & MODE if model.exists() else MODE)
    except OSError as error:
        raise CannotRun("accel config", [f"config file {path} could not be written: {error}"]) from None


def replace_text(path: Path, text: str, mode: int = 0o666) -> None:
    """Save a text beside a path, and rename it. A link is followed, and an error leaves no file behind.

    Args:
        path: Path to write to.
        text: Text to write.
        mode: Permissions of the file, less those that the user's mask takes.

    Raises:
        OSError: The disk refuses.
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


def keep_backup(path: Path, text: str) -> Path:
    """Save the text of a file at its path with .bak after the name, and return that path.

    Args:
        path: Path of the file.
        text: Its text.

    Raises:
        CannotRun: There is a file already, which may be the only copy of the original text, or it cannot be written.
    """
    copy = path.with_name(f"{path.name}.bak")
    if copy.exists():
        raise CannotRun("accel config", [f"{copy} is there already, from an earlier update: move it away"])
    write_config(copy, text, like=path)
    return copy
