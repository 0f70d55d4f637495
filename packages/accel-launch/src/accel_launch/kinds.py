"""The kinds of value that a launch option may hold, whether it comes from a flag, a variable or a file."""

import re
from collections.abc import Callable
from dataclasses import dataclass

Value = bool | int | str

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")
_UNIQUE_DEVICE = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]+")


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of value: how it is read, and the words for what it expects.

    `metavar` stands for the value in the help; None marks a switch, whose flag takes no value.
    """

    metavar: str | None
    expected: str
    read: Callable[[object], Value | None]

    @property
    def takes_value(self) -> bool:
        """Whether the flag consumes the token after it."""
        return self.metavar is not None


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


def one_of(*words: str) -> Kind:
    """The kind that holds exactly one of some words; a file's unquoted `no`, which YAML reads as False, is the word."""

    def read(value: object) -> str | None:
        word = "no" if value is False else str(value) if type(value) is int else value
        return word if isinstance(word, str) and word in words else None

    return Kind(metavar="{" + ",".join(words) + "}", expected=f"one of {', '.join(words)}", read=read)


COUNT = Kind(metavar="N", expected="a whole number of at least 1", read=_count)
NUMBER = Kind(metavar="N", expected="a whole number, or 0", read=_number)
SWITCH = Kind(metavar=None, expected="true or false", read=_switch)
PORT = Kind(metavar="PORT", expected="a port: a whole number below 65536, or 0", read=_port)
HOST = Kind(metavar="HOST", expected="the name or address of a machine", read=_text)
PAIRS = Kind(metavar="NAME=VALUE,...", expected="names and values such as partition=gpu,time=02:00:00", read=_pairs)
PATH = Kind(metavar="FILE", expected="a path", read=_text)
FOLDER = Kind(metavar="FOLDER", expected="a path", read=_text)
DEVICES = Kind(metavar="IDS", expected="all, or different device numbers such as 0,1", read=_devices)
