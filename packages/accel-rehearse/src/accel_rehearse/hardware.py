"""List devices by name, with their memory, and what they compute and send in a second."""

from __future__ import annotations

from dataclasses import dataclass, replace

_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


@dataclass(frozen=True, slots=True)
class Hardware:
    """A device of a rank. None says that nobody knows.

    Args:
        memory: Its bytes.
        flops: Floating-point operations per second in bf16.
        within: Bytes per second that it sends to devices of its machine.
        between: Bytes per second that it sends to other machines.
    """

    memory: float | None = None
    flops: float | None = None
    within: float | None = None
    between: float | None = None


#: vendors' figures of dense products in bf16, and of one direction of the links
KNOWN = {
    "h100": Hardware(80e9, 990e12, 450e9, 50e9),
    "h200": Hardware(141e9, 990e12, 450e9, 50e9),
    "b200": Hardware(180e9, 2250e12, 900e9, 50e9),
    "a100": Hardware(80e9, 312e12, 300e9, 25e9),
    "a100-40gb": Hardware(40e9, 312e12, 300e9, 25e9),
    "l40s": Hardware(48e9, 362e12, 32e9, 25e9),
    "mi300x": Hardware(192e9, 1307e12, 448e9, 50e9),
}


def read_rates(text: str) -> str | None:
    """Return a text of one or two rates with commas, or None if it cannot be read."""
    return text if 1 <= len(text.split(",")) <= 2 and all(map(read_number, text.split(","))) else None


def read_number(text: str) -> int | None:
    """Return the number of a text such as 80GB, 450GB/s or 990e12, or None if it cannot be read."""
    number = text.lower().removesuffix("/s").removesuffix("b").strip()
    unit = number[-1:] if number[-1:] in _UNITS else ""
    try:
        return int(float(number.removesuffix(unit)) * _UNITS[unit])
    except ValueError:
        return None


def hardware_of(device: str | None, memory: int | None, flops: int | None, bandwidth: str | None) -> Hardware:
    """Return the device that options describe.

    Args:
        device: Name of a known device.
        memory: Its bytes.
        flops: Its operations per second.
        bandwidth: What `read_rates` has read: bytes per second within a machine, and between machines.
    """
    rates = [read_number(part) for part in bandwidth.split(",")] if bandwidth else [None]
    given = {"memory": memory, "flops": flops, "within": rates[0], "between": rates[-1]}
    known = KNOWN[device] if device else Hardware()
    return replace(known, **{name: value for name, value in given.items() if value})
