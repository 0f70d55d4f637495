"""Declare the types of value that click lacks. Flags, variables and files all give text, which one type reads."""

import re
from collections.abc import Callable, Mapping
from typing import Any, final

import click
from accel_state.environ import pairs
from accel_state.save_interval import EXPECTED, SaveInterval

Value = bool | int | str | Mapping[str, str] | re.Match[str]

_WHOLE = re.compile(r"\s*(0|[1-9][0-9]{0,17})\s*", re.ASCII)
_DEVICE = re.compile(r"[0-9]+|(GPU|MIG)-[0-9A-Za-z/-]+", re.ASCII)


@final
class OptionType(click.ParamType):  # type: ignore[type-arg] # which takes one only in newer versions of click
    """A type by a function that reads a text.

    Args:
        name: Word for the value in the help.
        expected: Words for the texts that can be read.
        read: Returns the value of a text, or None if it cannot be read.
    """

    def __init__(self, name: str, expected: str, read: Callable[[str], Value | None]) -> None:
        self.name, self.expected, self._read = name, expected, read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Value:
        """Return the value of a text.

        Args:
            value: The text.
            param: Option that is read.
            ctx: Context of the command.

        Raises:
            click.BadParameter: The text cannot be read. The error has the expected texts.
        """
        read = self._read(str(value))
        if read is None:
            self.fail(f"expected {self.expected}, found {value!r}", param, ctx)
        return read

    def split_envvar_value(self, rv: str) -> list[str]:
        """Return the whole text: a variable holds one value, also of an option that may be repeated."""
        return [rv]


def as_text(value: object) -> str:
    """Return the text of a flag for a value: commas in lists, equals signs between names and values."""
    if isinstance(value, Mapping):
        return ",".join(f"{name}={'' if word is None else as_text(word)}" for name, word in value.items())
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _whole(least: int, below: int = 10**18) -> Callable[[str], int | None]:
    """Return a reader of whole numbers without leading zeros, for which YAML and C would read octal numbers."""

    def read(text: str) -> int | None:
        number = int(text) if _WHOLE.fullmatch(text) else -1
        return number if least <= number < below else None

    return read


def _devices(text: str) -> str | None:
    names = [name.strip() for name in text.split(",")]
    known = names == ["all"] or all(_DEVICE.fullmatch(name) for name in names)
    return ",".join(names) if known and len(set(names)) == len(names) else None


SWITCH = click.BOOL
#: whether the file is there is asked when it is read: --config_file /dev/null is one, and a new file has none yet
FILE = click.Path(dir_okay=False, readable=False)
FOLDER = click.Path(file_okay=False, readable=False)
COUNT = OptionType("N", "a whole number of at least 1", _whole(1))
NUMBER = OptionType("N", "a whole number, or 0", _whole(0))
INTERVAL = OptionType("N|Ns", EXPECTED, lambda text: text if SaveInterval.of(text) else None)
PORT = OptionType("PORT", "a port: a whole number below 65536, or 0", _whole(0, 1 << 16))
HOST = OptionType("HOST", "the name or address of a machine", lambda text: text.strip() or None)
DEVICES = OptionType("IDS", "all, or different device numbers such as 0,1", _devices)
PAIRS = OptionType("NAME=VALUE,...", "different names with values, such as partition=gpu,time=02:00:00", pairs)
