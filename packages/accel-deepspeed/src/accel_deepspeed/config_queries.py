"""Find values of a DeepSpeed config by dotted paths, as libraries do."""

from __future__ import annotations

import base64
import copy
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class HfDeepSpeedConfig:
    """A reader of a DeepSpeed config.

    Args:
        config_file_or_dict: The config: a mapping, a file, or JSON in base64.

    Raises:
        ValueError: It is none of these.
    """

    def __init__(self, config_file_or_dict: Mapping[str, Any] | str | Path) -> None:
        self.config: dict[str, Any] = _read(config_file_or_dict)

    def find_config_node(self, ds_key_long: str) -> tuple[dict[str, Any] | None, str]:
        """Return the section that a dotted path leads to, or None, and the last word of the path."""
        *sections, last = ds_key_long.split(".")
        found: Any = self.config
        for name in sections:
            found = found.get(name)
            if not isinstance(found, dict):
                return None, last
        return found, last

    def get_value(self, ds_key_long: str, default: Any = None) -> Any:
        """Return the value at a dotted path, or the default."""
        section, name = self.find_config_node(ds_key_long)
        return default if section is None else section.get(name, default)

    def del_config_sub_tree(self, ds_key_long: str, must_exist: bool = False) -> None:
        """Remove what is at a dotted path.

        Args:
            ds_key_long: The path.
            must_exist: Raise if nothing is there.

        Raises:
            ValueError: Nothing is there.
        """
        section, name = self.find_config_node(ds_key_long)
        if section is not None and name in section:
            del section[name]
        elif must_exist:
            raise ValueError(f"the DeepSpeed config has no {ds_key_long}: {json.dumps(self.config)}")

    def is_true(self, ds_key_long: str) -> bool:
        """Return True if a value is there that counts as true."""
        return bool(self.get_value(ds_key_long))

    def is_false(self, ds_key_long: str) -> bool:
        """Return True if a value is there that counts as false."""
        value = self.get_value(ds_key_long)
        return value is not None and not value

    def is_zero2(self) -> bool:
        """Return True if gradients and optimizer states are sharded."""
        return bool(self.get_value("zero_optimization.stage") == 2)

    def is_zero3(self) -> bool:
        """Return True if parameters are sharded as well."""
        return bool(self.get_value("zero_optimization.stage") == 3)

    def is_offload(self) -> bool:
        """Return True if parameters or optimizer states are kept on the CPU or on disk."""
        places = (f"zero_optimization.offload_{what}.device" for what in ("optimizer", "param"))
        return any(self.get_value(place) in ("cpu", "nvme") for place in places)


def _read(given: Mapping[str, Any] | str | Path) -> dict[str, Any]:
    if isinstance(given, Mapping):
        return copy.deepcopy(dict(given))
    try:
        is_file = os.path.isfile(given)  # a path of pathlib raises for texts that are too long for a path
        read = json.loads(Path(given).read_bytes() if is_file else base64.urlsafe_b64decode(str(given)))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"expected a DeepSpeed config: a dictionary, a file, or JSON in base64; found {given!r}"
        ) from error
    if not isinstance(read, dict):
        raise ValueError(f"expected a DeepSpeed config in {given!r}, found {type(read).__name__}")
    return read
