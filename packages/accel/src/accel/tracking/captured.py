"""Keep logged values as they are now, without a wait for the device, and read them later in one go."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import torch
from accel_checkpoint.pieces import is_distributed
from accel_comm.transports.device_work import asking
from accel_ops import recursively_apply

logger = logging.getLogger("accel")
#: what cannot change after it was logged
_FIXED = frozenset({int, float, bool, str, type(None)})


def captured(values: Mapping[str, Any]) -> tuple[dict[str, Any], Callable[[], bool] | None]:
    """Return values as they are now, and what waits until they can be read, or None if they can be read at once.

    A tensor on a device is copied there, whether or not a later step changes it in place, and the host goes on. A
    number on the CPU is read. A value that holds itself becomes None, with a warning.

    Raises:
        TypeError: A tensor is divided over ranks.
    """
    kept: dict[str, Any] = {}
    devices: set[torch.device] = set()
    for name, value in values.items():
        try:
            kept[name] = _captured(value, devices)
        except RecursionError:
            kept[name] = None
            _tell_too_deep(name)
    if not devices:
        return kept, None
    streams = [torch.accelerator.current_stream(device) for device in devices if runs_on_streams(device)]
    events = [(stream.device, stream.record_event()) for stream in streams]
    return kept, partial(_wait, events) if events else None


@cache
def _tell_too_deep(name: str) -> None:
    """Warn once: a loop logs such a value in each step."""
    logger.warning("log: %s holds itself, or is nested too deeply, and is recorded as None", name)


def _wait(events: list[tuple[torch.device, torch.Event]]) -> bool:
    for device, event in events:
        with asking(device):  # for good: the thread then reads the numbers
            event.synchronize()
    return True


def runs_on_streams(device: torch.device) -> bool:
    """Return True if torch's streams order the work of this device."""
    accelerator = torch.accelerator.current_accelerator()
    return accelerator is not None and accelerator.type == device.type


def _captured(value: Any, devices: set[torch.device]) -> Any:
    if type(value) in _FIXED:
        return value
    if isinstance(value, torch.Tensor):
        if type(value) is not torch.Tensor and is_distributed(value):
            raise TypeError(
                "log: a tensor that is divided over ranks; log a number that all ranks have, such as"
                " accelerator.reduce(loss, 'mean')"
            )
        if not value.is_cpu:
            devices.add(value.device)
        elif value.numel() == 1:
            return value.item()
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {name: _captured(inner, devices) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_captured(inner, devices) for inner in value]
    # of numpy, which need not be installed
    return value.copy() if type(value).__name__ == "ndarray" else value


def read(batch: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Replace tensors of one element by numbers, which are copied together, and others by tensors on the CPU."""
    alike: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = defaultdict(list)

    def collect(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.numel() == 1:
            alike[tensor.device, tensor.dtype].append(tensor)
        return tensor

    numbers: dict[int, Any] = {}
    recursively_apply(collect, batch)
    for tensors in alike.values():
        together = torch.stack([tensor.reshape(()) for tensor in tensors]).cpu().tolist()
        numbers |= {id(tensor): number for tensor, number in zip(tensors, together, strict=True)}

    def number_or_tensor(tensor: torch.Tensor) -> Any:
        return numbers[id(tensor)] if tensor.numel() == 1 else tensor.cpu()

    replaced: list[tuple[Any, ...]] = recursively_apply(number_or_tensor, batch)
    return replaced
