"""Read a config file, and write it in accel's own keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accel_state.errors import CannotRun

from accel_launch.cli.launch_command import resolve_options
from accel_launch.cli.option_types import as_text
from accel_launch.cli.options import BY_NAME
from accel_launch.config.accelerate_config import DISTRIBUTED_TYPE, LEGACY_FP16
from accel_launch.config.config_file import read_content, translate
from accel_launch.config.config_writer import HEADER, file_text
from accel_launch.config.option_entries import ENTRIES, normalised

_COMMENT = re.compile(r"(?:^|[ \t])(#.*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ConfigUpdate:
    """A config file in accel's own keys.

    Args:
        text: The new text, with the comments of the old file first.
        left_out: The keys, and the entries below them, that set nothing and are left out.
    """

    text: str
    left_out: list[str]


def settings_in(path: Path, what: str) -> Mapping[str, Any]:
    """Return the settings of a file, by the names of options.

    Raises:
        CannotRun: The file asks for anything that accel cannot do. `what` is the command that reads it.
    """
    options = resolve_options(["--config_file", str(path)], {})
    if options.problems:
        raise CannotRun(what, options.problems)
    settings = options.settings
    return {name: getattr(settings, name) for name in settings.origins if name != "config_file"}


def update_of(path: Path, what: str) -> ConfigUpdate:
    """Return what a config file is to say.

    Raises:
        CannotRun: The file asks for anything that accel cannot do. `what` is the command that reads it.
    """
    said, content = settings_in(path, what), read_content(path)
    kept = {BY_NAME[name].key for name in said}
    # these two are said by other keys now
    kept |= {key for key in (DISTRIBUTED_TYPE, LEGACY_FP16) if translate({key: content.get(key)})[0]}
    left_out = [str(key) for key in content if key not in kept]
    for option in ENTRIES:
        entries = content.get(option)
        for name, value in entries.items() if isinstance(entries, Mapping) else ():
            # alone such an entry is neither a setting nor a problem
            if normalised(option, {str(name): as_text(value)}) == ({}, []):
                left_out.append(f"{option}.{name}")
    comments = "".join(f"{words}\n" for words in _COMMENT.findall(path.read_text(encoding="utf-8")))
    return ConfigUpdate(file_text(said, path).replace(HEADER, HEADER + comments.replace(HEADER, "")), left_out)
