"""List devices by name, with their memory, and what they compute and send in a second."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import inf
from typing import Any

_NUMBER = re.compile(r"((?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([kmgt]?)b?(?:/s)?")
#: vendors' figures: memory, dense products in bf16, and one direction of the links within and between machines
KNOWN = {
    "h100": "80GB 990e12 450GB/s 50GB/s",
    "h200": "141GB 990e12 450GB/s 50GB/s",
    "b200": "180GB 2250e12 900GB/s 50GB/s",
    "a100": "80GB 312e12 300GB/s 25GB/s",
    "a100-40gb": "40GB 312e12 300GB/s 25GB/s",
    "l40s": "48GB 362e12 32GB/s 25GB/s",
    "mi300x": "192GB 1307e12 448GB/s 50GB/s",
}


@dataclass(frozen=True, slots=True)
class Hardware:
    """A device of a rank. Infinite is what nobody knows.

    Args:
        memory: Its bytes.
        flops: Floating-point operations per second in bf16.
        within: Bytes per second that it sends to devices of its machine.
        between: Bytes per second that it sends to other machines.
        disk: Bytes per second that are written to the disk.
    """

    memory: float = inf
    flops: float = inf
    within: float = inf
    between: float = inf
    disk: float = inf


def read_number(text: str) -> int | None:
    """Return the number of a text such as 80GB, 450GB/s or 990e12, or None if it cannot be read."""
    found = _NUMBER.fullmatch(text.lower())
    return None if found is None else int(float(found[1]) * 1000 ** " kmgt".index(found[2] or " "))


def size_of(count: float) -> str:
    """Return bytes in words, such as 1.5 GB."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < 1000 or unit == "TB":
            break
        count /= 1000
    return f"{count:.4g} {unit}"


def read_rates(text: str) -> dict[str, Any] | None:
    """Return the rates within and between machines in a text of one or two, or None if it cannot be read."""
    rates = [*map(read_number, text.split(","))]
    return {"within": rates[0], "between": rates[-1]} if len(rates) <= 2 and all(rates) else None


def hardware_of(device: str | None = None, bandwidth: dict[str, Any] | None = None, **given: int | None) -> Hardware:
    """Return the device that options describe.

    Args:
        device: Name of a known device.
        bandwidth: What `read_rates` has read.
        given: Other fields of the device.
    """
    known: Any = zip(Hardware.__slots__, map(read_number, KNOWN.get(device or "", "").split()), strict=False)
    return Hardware(**{**dict(known), **(bandwidth or {}), **{name: value for name, value in given.items() if value}})
