"""Save and restore the states of the random number generators of a process."""

from __future__ import annotations

import hashlib
import importlib.util
import random
import sys
from collections.abc import Callable
from typing import Any

import torch
from accel_state import Device

from accel_ops.rng import seed_everything


def capture(device: Device) -> dict[str, Any]:
    """Return the states of the generators of Python, torch, the accelerator, and NumPy if it is loaded."""
    states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        usual = isinstance(numpy.random.get_bit_generator(), numpy.random.MT19937)
        states["numpy"] = numpy.random.get_state(legacy=usual)
    if device.kind != "cpu":
        states[device.kind] = device.rng_state()
    return states


def problems(states: Any, device: Device) -> list[str]:
    """Return a line for each state that is missing, damaged or not restorable here.

    Args:
        states: Return value of `capture`, perhaps of another process.
        device: Device of this process.
    """
    if not isinstance(states, dict):
        return [f"generators: their states are a {type(states).__name__}"]
    wanted = ["python", "torch", *(["numpy"] if "numpy" in sys.modules else [])]
    lines = [f"generators: the state of {name!r} is missing" for name in wanted if name not in states]
    if "numpy" in states and importlib.util.find_spec("numpy") is None:
        lines.append("generators: there is a state of 'numpy', and NumPy is not installed: pip install numpy")
    tries: dict[str, Callable[[Any], Any]] = {"python": random.Random().setstate, "torch": torch.Generator().set_state}
    if "numpy" in states and not lines:
        numpy: Any = importlib.import_module("numpy")
        kind = type(numpy.random.get_bit_generator())  # a script may have replaced the usual one
        tries["numpy"] = numpy.random.RandomState(kind()).set_state
    for name, put in tries.items():
        try:
            put(states[name])
        except (TypeError, ValueError, RuntimeError, LookupError, AttributeError, OverflowError) as error:
            if name in states:
                lines.append(f"generators: the state of {name!r} is damaged: {error}")
    return lines


def lacks_device(states: dict[str, Any], device: Device) -> bool:
    """Return whether the states have none for the accelerator of this process."""
    return device.kind != "cpu" and device.kind not in states


def restore(states: dict[str, Any], device: Device) -> None:
    """Set the generators of Python, torch, NumPy and the accelerator to saved states.

    Check the states with `problems` before. If they have none for the accelerator of this process, its generator gets a
    seed derived from them.

    Args:
        states: Return value of `capture`, perhaps of another process.
        device: Device of this process.
    """
    if lacks_device(states, device):
        derive(states, 0)
    random.setstate(states["python"])
    torch.set_rng_state(states["torch"])
    if "numpy" in states:
        numpy: Any = importlib.import_module("numpy")  # it was there when the state was taken
        numpy.random.set_state(states["numpy"])
    if device.kind != "cpu" and device.kind in states:
        device.set_rng_state(states[device.kind])


def derive(states: dict[str, Any], rank: int) -> None:
    """Seed the generators of a process that has no saved state, from the states of another process and the rank.

    Args:
        states: The states of the first process.
        rank: Number that makes the seed differ from those of other processes.
    """
    numbers = bytes(states["torch"].tolist()) + f"{states['python']}/{rank}".encode()
    seed = int.from_bytes(hashlib.sha256(numbers).digest()[:8], "little") >> 1
    seed_everything(seed)
