"""Moves nested data to a device."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from accel_ops.tree import honor_type, same_mapping


def send_to_device(
    data: Any,
    device: torch.device | str | int,
    non_blocking: bool = False,
    skip_keys: str | Iterable[str] | None = None,
) -> Any:
    """`data` with everything that has a `to` on `device`; mapping entries under `skip_keys` stay where they are."""
    skipped = frozenset((skip_keys,) if isinstance(skip_keys, str) else skip_keys or ())

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(device, non_blocking=non_blocking)
        # Before containers: a PackedSequence is a tuple, whose own method knows which of its parts move.
        to = getattr(value, "to", None)
        if callable(to):
            return to(device)
        if isinstance(value, tuple | list):
            return honor_type(value, [move(item) for item in value])
        if isinstance(value, Mapping):
            return same_mapping(value, {key: item if key in skipped else move(item) for key, item in value.items()})
        return value

    return move(data)
