"""Check a device map against a model before anything is moved or read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from accel_checkpoint.weights.materialise import named_tensors
from accel_state.errors import CannotRun
from torch import nn

from accel_big.maps.sizes import find_tied_parameters, prefixes

#: the word of device maps for weights that stay in their files
DISK = "disk"


def real_device(device: int | str | torch.device) -> torch.device:
    """Return the torch device for an entry of a device map other than "disk".

    An index is that of an accelerator.

    Raises:
        CannotRun: torch has no such device, or it holds no data.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    count = torch.accelerator.device_count()
    asked = f"device {device!r}"
    if isinstance(device, int):
        if accelerator is None or not 0 <= device < count:
            raise CannotRun(asked, [f"torch finds {count} accelerators; name one of them, 'cpu' or 'disk'"])
        return torch.device(accelerator.type, device)
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise CannotRun(asked, [f"torch knows no such device: {str(error).splitlines()[0]}"]) from None
    if place.type == "meta":
        raise CannotRun(asked, ["the meta device holds no numbers"])
    try:
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        there = f"torch finds {count} accelerators" + (f" ({accelerator.type})" if accelerator else "")
        raise CannotRun(asked, [f"{str(error).splitlines()[0]}; {there}"]) from None
    return place


def check_device_map(model: nn.Module, device_map: Mapping[str, Any]) -> dict[str, torch.device | str]:
    """Return the device of each tensor of a model by name, or "disk". The entry with the longest name counts.

    Raises:
        CannotRun: A tensor has no entry, an entry has no tensor, a device is unknown, or tied weights are to be on
            several devices. The error lists all of these.
    """
    problems = []
    devices: dict[str, torch.device | str] = {}
    for name, device in device_map.items():
        try:
            devices[name] = DISK if device == DISK else real_device(device)
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
