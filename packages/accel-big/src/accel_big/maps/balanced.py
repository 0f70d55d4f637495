"""Shares a model out evenly over accelerators."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from accel_big.maps.device_map import layers_of
from accel_big.maps.memory import DeviceKey, Memory, get_max_memory
from accel_big.maps.sizes import Dtype, compute_module_sizes, no_split_classes


def get_balanced_memory(
    model: nn.Module,
    max_memory: Memory | None = None,
    no_split_module_classes: list[str] | None = None,
    dtype: Dtype | None = None,
    special_dtypes: Mapping[str, Dtype] | None = None,
    low_zero: bool = False,
) -> dict[DeviceKey, int]:
    """`max_memory`, in which accelerators get like shares of the model; with `low_zero` the first as little as can be.

    Units: bytes.
    Raises: CannotRun as `get_max_memory`.
    """
    memory = get_max_memory(max_memory)
    accelerators = [device for device, size in memory.items() if isinstance(device, int) and size > 0]
    sizes = compute_module_sizes(model, dtype, special_dtypes)
    total = sizes[""]
    if len(accelerators) < 2 or total > sum(memory[device] for device in accelerators):
        return memory
    largest = max(layers_of(model, sizes, no_split_classes(model, no_split_module_classes)), default=0)
    first, *rest = accelerators
    if low_zero:
        memory[first] = min(memory[first], max(0, total - sum(memory[device] for device in rest)))
    shared = rest if low_zero else accelerators
    # layers are not cut, and the first device keeps room for the largest
    share = -(-total // len(shared)) + largest
    for device in shared[:-1]:
        memory[device] = min(memory[device], share + (largest if device == first else 0))
    return memory
