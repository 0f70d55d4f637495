"""Divide a model evenly over accelerators."""

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
    """Return limits of memory with which accelerators get equal shares of a model.

    Args:
        model: Model to divide; it may be on the meta device.
        max_memory: Limits to stay within, by device. Default: the free memory.
        no_split_module_classes: Names of classes whose modules stay on one device.
        dtype: Dtype in which floating-point tensors are counted, if it is smaller than theirs.
        special_dtypes: Dtypes of tensors by name.
        low_zero: Leave as much of the first accelerator free as can be.

    Raises:
        CannotRun: A device or a size in `max_memory` is wrong.

    Units:
        Bytes.
    """
    memory = get_max_memory(max_memory)
    accelerators = [device for device, size in memory.items() if isinstance(device, int) and size > 0]
    sizes = compute_module_sizes(model, dtype, special_dtypes)
    total = sizes[""]
    if len(accelerators) < 2 or total > sum(memory[device] for device in accelerators):
        return memory
    layers = layers_of("", model, no_split_classes(model, no_split_module_classes))
    largest = max(map(sizes.__getitem__, layers), default=0)
    first, *rest = accelerators
    if low_zero:
        memory[first] = min(memory[first], max(0, total - sum(memory[device] for device in rest)))
    shared = rest if low_zero else accelerators
    # layers are not cut, and the first device keeps room for the largest
    share = -(-total // len(shared)) + largest
    for device in shared[:-1]:
        memory[device] = min(memory[device], share + (largest if device == first else 0))
    return memory
