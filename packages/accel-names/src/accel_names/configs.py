"""Write and read config files of the launcher, as scripts for Accelerate do."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from accel_launch.config.config_file import DEFAULT_NAME, config_folder, read_content, translate
from accel_launch.config.config_writer import file_text, write_config
from accel_state import CannotRun
from accel_state.environ import process_environ

PRECISIONS = ("no", "fp16", "bf16", "fp8")


def __getattr__(name: str) -> str:
    if name == "default_config_file":
        return str(default_config_path(None))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def default_config_path(given: str | Path | None) -> Path:
    """Return a path as it is given, or that of the file of `accel config`."""
    return Path(given) if given is not None else config_folder(process_environ()) / DEFAULT_NAME


def write_basic_config(mixed_precision: str = "no", save_location: str | Path | None = None) -> Path | bool:
    """Write a config file with a precision, unless there is a file already.

    Processes are not counted: `accel launch` starts one for each accelerator that a machine has then.

    Args:
        mixed_precision: "no", "fp16", "bf16" or "fp8".
        save_location: The path of the file; by default that of `accel config`.

    Returns:
        The path; False if there is a file, which stays.

    Raises:
        ValueError: For an unknown precision.
        CannotRun: If the file cannot be written.
    """
    if mixed_precision not in PRECISIONS:
        raise ValueError(f"mixed_precision={mixed_precision!r}: expected one of {', '.join(PRECISIONS)}")
    path = default_config_path(save_location)
    if path.exists():
        return False
    write_config(path, file_text({"mixed_precision": mixed_precision}, path))
    return path


def load_config_from_file(config_file: str | Path | None) -> Any:
    """Return the settings of a config file as attributes with the names of launch options.

    Args:
        config_file: The path; None for that of `accel config`.

    Raises:
        CannotRun: If there is no such file, and with all that is wrong in it.
    """
    path = default_config_path(config_file)
    values, problems = translate(read_content(path))
    if problems:
        raise CannotRun(f"config file {path}", problems)
    return SimpleNamespace(**{"mixed_precision": "no", **values})
