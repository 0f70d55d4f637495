"""Convert values of scripts to JSON: nested mappings, numbers of numpy and of tensors, NaN."""

from __future__ import annotations

import dataclasses
import json
import math
from argparse import Namespace
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any, Protocol, runtime_checkable

#: how numbers are written that JSON does not have
NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
#: of a whole number that every reader of JSON can take for a float
LARGEST_BITS = 1023


class ValuesLeftOut(TypeError):
    """An error about values that a tracker does not take, after it has recorded the others."""


@runtime_checkable
class _Array(Protocol):
    def tolist(self) -> Any: ...


def to_json(value: Any) -> Any:
    """Convert a value to what JSON has.

    Returns:
        Dictionaries for mappings, dataclasses and namespaces, lists for sequences and sets, a number or nested lists
        for an array, "NaN", "Infinity" or "-Infinity" for a number that JSON lacks or that no float can hold, and the
        `repr` of an unknown object.
    """
    if isinstance(value, Enum):
        return to_json(value.value)
    if isinstance(value, int) and value.bit_length() > LARGEST_BITS:
        value = as_number(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else json.dumps(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Namespace):
        return to_json(vars(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): to_json(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json(inner) for inner in value]
    if isinstance(value, _Array) and not isinstance(value, type):
        listed = value.tolist()
        while isinstance(listed, list) and len(listed) == 1:  # an array of one number is that number
            listed = listed[0]
        return to_json(listed)
    return repr(value)


def flatten(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value of nested mappings with its path: {"loss": {"train": 1}} has loss/train.

    Args:
        values: Values and mappings by name.
        above: What each path begins with.
    """
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{above}{name}/")
        else:
            yield f"{above}{name}", value


def as_number(value: Any) -> float | None:
    """Return the number that a value of JSON means, or None if it means no number.

    "NaN" and "Infinity" are numbers. A whole number that no float can hold is infinite.
    """
    if isinstance(value, str):
        return NOT_FINITE.get(value)
    if isinstance(value, int) and value.bit_length() > LARGEST_BITS:
        return math.inf if value > 0 else -math.inf
    return value if isinstance(value, int | float) else None
