"""Config files of the launcher, as scripts for Accelerate write and read them."""

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
        return str(config_folder(process_environ()) / DEFAULT_NAME)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def write_basic_config(mixed_precision: str = "no", save_location: str | Path | None = None) -> Path | bool:
    """The path of a config file with this precision, written now; False if there is a file already, which stays.

    Processes are not counted: `accel launch` starts one for each accelerator that a machine has then.

    Raises: ValueError for an unknown precision; CannotRun if the file cannot be written.
    """
    if mixed_precision not in PRECISIONS:
        raise ValueError(f"mixed_precision={mixed_precision!r}: expected one of {', '.join(PRECISIONS)}")
    path = Path(save_location) if save_location is not None else config_folder(process_environ()) / DEFAULT_NAME
    if path.exists():
        return False
    write_config(path, file_text({"mixed_precision": mixed_precision}, path))
    return path


def load_config_from_file(config_file: str | Path | None) -> Any:
    """The settings of a config file as attributes with the names of launch options; without a path the default file's.

    Raises: CannotRun if there is no such file, and with all that is wrong in it.
    """
    path = Path(config_file) if config_file is not None else config_folder(process_environ()) / DEFAULT_NAME
    values, problems = translate(read_content(path))
    if problems:
        raise CannotRun(f"config file {path}", problems)
    return SimpleNamespace(**{"mixed_precision": "no", **values})
