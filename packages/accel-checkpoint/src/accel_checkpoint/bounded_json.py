"""Write JSON in one line, and read that of others, unless it would take much more memory than its text."""

from __future__ import annotations

import json
import reprlib
from collections import Counter
from pathlib import Path
from typing import Any

#: the most bytes of a file, values in it, and lists and objects among these. 100,000 parameters with names of 60 bytes
#: and the moments of Adam need 47 MB with 800,000 values, 400,000 of them objects; each of at most 64 processes needs
#: 17 kB with 650 values, mostly the state of Python's generator, and each part of a sharded file 150 bytes
MOST_BYTES, MOST_VALUES, MOST_CONTAINERS = 96_000_000, 1 << 22, 1 << 20
#: the deepest nesting: a value that is nested 64 deep may take three levels of JSON for each of its own
DEEPEST = 256


def compact_json(value: Any) -> str:
    """Return a value as JSON in one line without blanks.

    Raises:
        ValueError: It has a number that JSON does not know.
    """
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def require_bounded(text: str) -> None:
    """Raise if a text has too many values to be read as JSON, before any of them is made.

    Raises:
        ValueError: The text is over a limit, which the message names.
    """
    if len(text) > MOST_BYTES:
        raise ValueError(f"it has {len(text):,} characters: more than {MOST_BYTES:,} are not read")
    containers = values = 0
    for begin in range(0, len(text), 1 << 20):
        span = begin, begin + (1 << 20)
        containers += text.count("[", *span) + text.count("{", *span)
        values += text.count(",", *span)  # those inside of texts count too, of which a state has few
        if containers > MOST_CONTAINERS or containers + values > MOST_VALUES:
            raise ValueError(
                f"it has more than {MOST_VALUES:,} values, or {MOST_CONTAINERS:,} lists and objects: these are not read"
            )


def parse_json(text: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: The text is not JSON, has too many values, or has a name twice in an object.
        RecursionError: It is nested too deep.
    """
    require_bounded(text)
    value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    level = [value]
    for _ in range(DEEPEST):
        inner = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list))
        level = [child for children in inner for child in children if isinstance(child, dict | list)]
        if not level:
            return value
    raise RecursionError(f"it is nested deeper than {DEEPEST}")


def read_json(path: Path) -> Any:
    """Return the value in a JSON file.

    Raises:
        ValueError: The file is too large, is not JSON, has too many values, or has a name twice in an object.
        RecursionError: It is nested too deep.
        OSError: It cannot be read.
    """
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ValueError(f"it has {size:,} bytes: more than {MOST_BYTES:,} are not read")
    return parse_json(path.read_text(encoding="utf-8"))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"it has {reprlib.repr(name)} twice")
    return mapping


def _no_constant(name: str) -> Any:
    raise ValueError(f"it has the number {name}, which JSON does not know")
