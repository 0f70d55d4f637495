"""List devices by name, with their memory, and what they compute and send in a second."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import inf
from typing import Any

_NUMBER = re.compile(r"((?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([kmgt]?)b?(?:/s)?")
#: vendors' figures: memory, dense products in 16 bits, TF32, float32 and float64, and one direction of the links
#: within and between machines
KNOWN: dict[Any, str] = {
    "h100": "80GB 990e12 495e12 67e12 67e12 450GB/s 50GB/s",
    "h200": "141GB 990e12 495e12 67e12 67e12 450GB/s 50GB/s",
    "b200": "180GB 2250e12 1125e12 75e12 37e12 900GB/s 50GB/s",
    "a100": "80GB 312e12 156e12 19.5e12 19.5e12 300GB/s 25GB/s",
    "a100-40gb": "40GB 312e12 156e12 19.5e12 19.5e12 300GB/s 25GB/s",
    "l40s": "48GB 362e12 181e12 91.6e12 1.4e12 32GB/s 25GB/s",
    "mi300x": "192GB 1307e12 653e12 163.4e12 163.4e12 448GB/s 50GB/s",
}


@dataclass(frozen=True, slots=True)
class Hardware:
    """A device of a rank. Infinite is what nobody knows.

    Args:
        memory: Its bytes.
        flops: Floating-point operations per second in 16 bits.
        tf32: Those of products of float32 by TF32.
        float32: Those in float32.
        float64: Those in float64.
        within: Bytes per second that it sends to devices of its machine.
        between: Bytes per second that it sends to other machines.
        disk: Bytes per second that are written to the disk.
    """

    memory: float = inf
    flops: float = inf
    tf32: float = inf
    float32: float = inf
    float64: float = inf
    within: float = inf
    between: float = inf
    disk: float = inf


def read_number(text: str) -> int | None:
    """Return the number of a text such as 80GB, 450GB/s or 990e12, or None if it cannot be read."""
    found = _NUMBER.fullmatch(text.lower())
    return found and int(float(found[1]) * 1000 ** " kmgt".index(found[2]))


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
        given: Other fields of the device. Its flops are those of any precision.
    """
    own = {**dict.fromkeys(("tf32", "float32", "float64"), given.get("flops")), **given, **(bandwidth or {})}
    return Hardware(
        **{
            **dict(zip(Hardware.__slots__, map(read_number, KNOWN.get(device, "").split()), strict=False)),
            **{name: value for name, value in own.items() if value},
        }
    )
