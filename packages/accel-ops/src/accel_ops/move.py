"""Move nested data to a device."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import torch

from accel_ops.tree import honor_type, same_mapping


def send_to_device(
    data: Any,
    device: torch.device | str | int,
    non_blocking: bool = False,
    skip_keys: str | Iterable[str] | None = None,
) -> Any:
    """Move nested tensors, and objects with a `to` method, to a device.

    Args:
        data: Tensors and objects in lists, tuples and mappings.
        device: Device to move to.
        non_blocking: Start copies without waiting for them; objects get this argument if their `to` takes it.
        skip_keys: Key or keys of mappings whose entries are not moved.

    Returns:
        The data in new containers of the same types. Objects without a `to` are the same.
    """
    skipped = frozenset((skip_keys,) if isinstance(skip_keys, str) else skip_keys or ())

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(device, non_blocking=non_blocking)
        # Before containers: a PackedSequence is a tuple, whose own method knows which of its parts move.
        to = getattr(value, "to", None)
        if callable(to):
            if non_blocking:
                with suppress(TypeError):  # a method of its own may know the device alone
                    return to(device, non_blocking=True)
            return to(device)
        if isinstance(value, tuple | list):
            return honor_type(value, [move(item) for item in value])
        if isinstance(value, Mapping):
            return same_mapping(value, {key: item if key in skipped else move(item) for key, item in value.items()})
        return value

    return move(data)
