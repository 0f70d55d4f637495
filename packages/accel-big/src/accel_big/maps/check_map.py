"""Check a device map against a model before anything is moved or read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from accel_checkpoint.weights.materialise import named_tensors
from accel_state.errors import CannotRun
from torch import nn

from accel_big.maps.sizes import find_tied_parameters, prefixes

#: those of accelerators, which torch keeps in eight bits: it takes a larger one for another
INDICES = range(128)
#: the word of device maps for weights that stay in their files
DISK = "disk"


def named_device(device: int | str | torch.device) -> torch.device:
    """Return the torch device for an entry of a device map other than "disk", whether or not this machine has it.

    An index is that of an accelerator, and on a machine without any that of a CUDA GPU.

    Raises:
        CannotRun: torch knows no such device, or it holds no data.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if isinstance(device, int) and device not in INDICES:
        raise CannotRun(f"device {device!r}", [f"the index of an accelerator is from 0 to {max(INDICES)}"])
    try:
        place = (
            torch.device(accelerator.type if accelerator else "cuda", device)
            if isinstance(device, int)
            else torch.device(device)
        )
    except (RuntimeError, TypeError) as error:
        raise CannotRun(f"device {device!r}", [f"torch knows no such device: {str(error).splitlines()[0]}"]) from None
    if place.type == "meta":
        raise CannotRun(f"device {device!r}", ["the meta device holds no numbers"])
    return place


def real_device(device: int | str | torch.device) -> torch.device:
    """Return the torch device for an entry of a device map other than "disk".

    Raises:
        CannotRun: torch knows no such device, this machine does not have it, or it holds no data.
    """
    place = named_device(device)
    try:
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        accelerator, count = torch.accelerator.current_accelerator(), torch.accelerator.device_count()
        there = f"torch finds {count} accelerators" + (f" ({accelerator.type})" if accelerator and count else "")
        reason = f"{str(error).splitlines()[0]}; {there}; name one of them, 'cpu' or 'disk'"
        raise CannotRun(f"device {device!r}", [reason]) from None
    return place


def check_device_map(
    model: nn.Module, device_map: Mapping[str, Any], *, present: bool = False
) -> dict[str, torch.device | str]:
    """Return the device of each tensor of a model by name, or "disk". The entry with the longest name counts.

    Args:
        model: The model.
        device_map: Devices by the names of modules and tensors.
        present: Refuse devices that this machine lacks. Without it a map for another machine can be checked.

    Raises:
        CannotRun: A tensor has no entry, an entry has no tensor, a device is unknown, or tied weights are to be on
            several devices. The error lists all of these.
    """
    device_of = real_device if present else named_device
    problems = []
    devices: dict[str, torch.device | str] = {}
    for name, device in device_map.items():
        try:
            devices[name] = DISK if device == DISK else device_of(device)
        except CannotRun as error:
            problems.append(f"{name!r}: {device!r}: {'; '.join(error.reasons)}")
    known = {name for name, _ in model.named_modules(remove_duplicate=False)}
    placed: dict[str, torch.device | str] = {}
    used: set[str] = set()
    uncovered = []
    for name in named_tensors(model):
        entry = next((prefix for prefix in reversed([*prefixes(name)]) if prefix in device_map), None)
        if entry is None:
            uncovered.append(name)
            continue
        used.update(prefix for prefix in prefixes(name) if prefix in device_map)
        if entry in devices:
            placed[name] = devices[entry]
    if uncovered:
        problems.append(f"no entry covers {', '.join(uncovered)}")
    for name in device_map:
        if name not in used and name not in known:
            problems.append(f"{name!r} is neither a module nor a tensor of the model")
    for names in find_tied_parameters(model):
        where = {name: str(placed[name]) for name in names if name in placed}
        if len(set(where.values())) > 1:
            told = ", ".join(f"{name} on {device}" for name, device in where.items())
            problems.append(f"tied weights share one memory, and cannot be on several devices: {told}")
    if problems:
        raise CannotRun(f"the device map for a {type(model).__name__}", problems)
    return placed
