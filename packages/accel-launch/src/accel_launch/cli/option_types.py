"""The types of value that a launch option may have, whether it comes from a flag, a variable or a file."""

import re
from collections.abc import Callable
from typing import Any, final

import click
from click.shell_completion import CompletionItem

Value = bool | int | str

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")
_UNIQUE_DEVICE = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]+")


@final
class OptionType(click.ParamType):  # type: ignore[type-arg] # which takes one only in newer versions of click
    """One type of value: how it is read, and the words for what it expects.

    `metavar` stands for the value in the help. `words` are all that it may be, if these are few; `completes` is what a
    shell offers for it: `file`, `dir`, or nothing.
    """

    def __init__(
        self,
        metavar: str,
        expected: str,
        read: Callable[[object], Value | None],
        *,
        words: tuple[str, ...] = (),
        completes: str = "",
    ) -> None:
        self.name = self.metavar = metavar
        self.expected, self.read, self.words, self.completes = expected, read, words, completes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Value:
        """The value that is meant; `-n=2` of a short option is 2.

        Raises: click.BadParameter with what was expected.
        """
        short = isinstance(value, str) and (self.metavar == "N" or self.words)
        word = value.removeprefix("=") if short else value
        found = self.read(word)
        if found is None:
            self.fail(f"expected {self.expected}, found {word!r}", param, ctx)
        return found

    def split_envvar_value(self, rv: str) -> list[str]:
        """A variable holds one value."""
        return [rv]

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """What stands for the value in the help."""
        return self.metavar

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """What a shell offers."""
        if self.completes:
            return [CompletionItem(incomplete, type=self.completes)]
        return [CompletionItem(word) for word in self.words if word.startswith(incomplete)]


def _count(value: object) -> int | None:
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 1 else None


def _number(value: object) -> int | None:
    return 0 if value in (0, "0") and not isinstance(value, bool) else _count(value)


def _switch(value: object) -> bool | None:
    word = str(value).strip().lower() if isinstance(value, bool | int | str) else ""
    return True if word in _TRUE else False if word in _FALSE else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _port(value: object) -> int | None:
    number = _number(value)
    return number if number is not None and number < 1 << 16 else None


def _pairs(value: object) -> str | None:
    """Names with values, in the order in which they came."""
    if isinstance(value, dict):
        value = ",".join(f"{name}={each}" for name, each in value.items())
    entries = [entry.partition("=") for entry in value.split(",")] if isinstance(value, str) else []
    known = all(name.strip() and equals for name, equals, _ in entries)
    return ",".join(f"{name.strip()}={each.strip()}" for name, _, each in entries) if entries and known else None


def _devices(value: object) -> str | None:
    if isinstance(value, list):
        entries = [str(entry).strip() for entry in value]
    elif isinstance(value, int | str) and not isinstance(value, bool):
        entries = [entry.strip() for entry in str(value).split(",")]
    else:
        return None
    if entries == ["all"]:
        return "all"
    known = all((entry.isascii() and entry.isdigit()) or _UNIQUE_DEVICE.fullmatch(entry) for entry in entries)
    return ",".join(entries) if entries and known and len(set(entries)) == len(entries) else None


def one_of(*words: str) -> OptionType:
    """The type that is exactly one of some words; a file's unquoted `no`, which YAML reads as False, is the word."""

    def read(value: object) -> str | None:
        word = "no" if value is False else str(value) if type(value) is int else value
        return word if isinstance(word, str) and word in words else None

    return OptionType("{" + ",".join(words) + "}", f"one of {', '.join(words)}", read, words=words)


COUNT = OptionType("N", "a whole number of at least 1", _count)
NUMBER = OptionType("N", "a whole number, or 0", _number)
SWITCH = OptionType("", "true or false", _switch)
PORT = OptionType("PORT", "a port: a whole number below 65536, or 0", _port)
HOST = OptionType("HOST", "the name or address of a machine", _text)
PAIRS = OptionType("NAME=VALUE,...", "names and values such as partition=gpu,time=02:00:00", _pairs)
PATH = OptionType("FILE", "a path", _text, completes="file")
FOLDER = OptionType("FOLDER", "a path", _text, completes="dir")
DEVICES = OptionType("IDS", "all, or different device numbers such as 0,1", _devices)
