"""Estimate the least and the most time of a step by what it computes and sends."""

from __future__ import annotations

from typing import Any

from accel_rehearse.hardware import Hardware

#: the part of a device's rate that training reaches, at best and at worst
BEST, WORST = 0.6, 0.25
#: how often the bytes of a tensor leave a rank, for each of its other ranks
_TIMES = {"all_reduce": 2.0}


def step_seconds(one: dict[str, Any], hardware: Hardware, per_machine: int, measured: float | None) -> dict[str, Any]:
    """Return the least and the most seconds of a step, and what they are made of.

    At best, exchanges hide behind computing; at worst they follow it.

    Args:
        one: Notes of a rank.
        hardware: The device of a rank.
        per_machine: Ranks of a machine.
        measured: Seconds of a step that were measured on one device.
    """
    sending = 0.0
    for each in one["exchanges"]:
        inside = len({rank // per_machine for rank in each["ranks"]}) == 1
        rate = hardware.within if inside else hardware.between
        share = (each["group_size"] - 1) / each["group_size"]
        sending += each["bytes"] * share * _TIMES.get(each["name"], 1.0) / rate if rate else 0.0
    if measured is not None:
        least = most = measured
    elif hardware.flops is None:
        return {}
    else:
        least, most = one["flops"] / hardware.flops / BEST, one["flops"] / hardware.flops / WORST
    bound = "exchange" if sending > most else "compute"
    return {"low": max(least, sending), "high": most + sending, "exchange": sending, "bound": bound}
