"""Estimate the least and the most time of a step by what it computes and sends."""

from __future__ import annotations

import re
from typing import Any

from accel_rehearse.hardware import Hardware

#: the part of a device's rate that training reaches, at best and at worst
BEST, WORST = 0.6, 0.25


def step_seconds(said: dict[str, Any], hardware: Hardware, measured: re.Match[str] | None) -> dict[str, Any]:
    """Return the least and the most seconds of a step, and what is assumed.

    At best, exchanges hide behind computing; at worst they follow it.

    Args:
        said: What is reported of a rank.
        hardware: The device of a rank.
        measured: Match of seconds of a step that were measured on one device.
    """
    # in an all_reduce, the bytes of a tensor leave a rank twice
    sending = sum(
        each["bytes"]
        * (1 + (each["name"] == "all_reduce"))
        * (1 - 1 / each["group_size"])
        / (hardware.within if each["machines"] == 1 else hardware.between)
        for each in said["exchanges"]
    )
    computing = 0.0
    computed = f"at {BEST:.0%} to {WORST:.0%} of the device's rate"
    for precision, count in said["flops_by_precision"].items():
        rate = getattr(hardware, precision, hardware.flops)
        computing += count / rate
        computed += f", {rate / 1e12:.4g}e12/s in {precision}"
    least, most = computing / BEST, computing / WORST
    if measured:
        least = most = float(measured[1])
        computed = f"as measured ({measured[0]})"
    if not most:
        return {}
    return {
        "low": max(least, sending),
        "high": most + sending,
        "bound": "exchange" if sending > most else "compute",
        "assumed": f"{computed}, with {sending:.3g} s of exchange, hidden behind it or not",
    }
