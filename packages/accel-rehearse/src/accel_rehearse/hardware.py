"""Know devices by name: their memory, and what they compute and send in a second."""

from __future__ import annotations

from dataclasses import dataclass, replace

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


@dataclass(frozen=True, slots=True)
class Hardware:
    """A device of a rank. None says that nobody knows.

    Args:
        memory: Its bytes.
        flops: Floating-point operations per second in bf16.
        within: Bytes per second that it sends to devices of its machine.
        between: Bytes per second that it sends to other machines.
    """

    memory: int | None = None
    flops: float | None = None
    within: float | None = None
    between: float | None = None


#: vendors' figures of dense products in bf16, and of one direction of the links
KNOWN = {
    "h100": Hardware(80 * 10**9, 990e12, 450e9, 50e9),
    "h200": Hardware(141 * 10**9, 990e12, 450e9, 50e9),
    "b200": Hardware(180 * 10**9, 2250e12, 900e9, 50e9),
    "a100": Hardware(80 * 10**9, 312e12, 300e9, 25e9),
    "a100-40gb": Hardware(40 * 10**9, 312e12, 300e9, 25e9),
    "l40s": Hardware(48 * 10**9, 362e12, 32e9, 25e9),
    "mi300x": Hardware(192 * 10**9, 1307e12, 448e9, 50e9),
}


def read_hardware(
    device: str | None, memory: str | None, flops: str | None, bandwidth: str | None
) -> tuple[Hardware, list[str]]:
    """Return the device that options describe, and what cannot be read of them.

    Args:
        device: Name of a known device.
        memory: Bytes, such as 80GB.
        flops: Operations per second, such as 990e12.
        bandwidth: Bytes per second within a machine and between machines, such as 450GB/s,50GB/s.
    """
    hardware, problems = KNOWN[device] if device else Hardware(), []
    if memory is not None:
        size = _read(memory)
        problems += [] if size else [f"--memory {memory}: expected bytes such as 80GB"]
        hardware = replace(hardware, memory=int(size or 0))
    if flops is not None:
        rate = _read(flops)
        problems += [] if rate else [f"--flops {flops}: expected a number such as 990e12"]
        hardware = replace(hardware, flops=rate)
    if bandwidth is not None:
        rates = [_read(part) for part in bandwidth.split(",")]
        if not all(rates) or len(rates) > 2:
            problems.append(f"--bandwidth {bandwidth}: expected bytes per second such as 450GB/s,50GB/s")
        hardware = replace(hardware, within=rates[0], between=rates[-1])
    return hardware, problems


def _read(text: str) -> float | None:
    number = text.lower().removesuffix("/s").removesuffix("b").strip()
    unit = number[-1:] if number[-1:] in _UNITS else ""
    try:
        return float(number.removesuffix(unit)) * _UNITS[unit]
    except ValueError:
        return None
