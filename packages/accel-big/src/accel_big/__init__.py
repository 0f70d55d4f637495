"""Run big models by device maps, keep weights on the host or on disk, and estimate memory.

Importing this package does not import torch; the first use of a name does.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accel_big.dispatch import cpu_offload, disk_offload, dispatch_model, load_checkpoint_and_dispatch
    from accel_big.hooks.align_devices import AlignDevicesHook, attach_align_device_hook, attach_execution_device_hook
    from accel_big.hooks.blocks import attach_align_device_hook_on_blocks
    from accel_big.hooks.cpu_offload import CpuOffload, UserCpuOffloadHook, cpu_offload_with_hook
    from accel_big.hooks.model_hook import (
        ModelHook,
        SequentialHook,
        add_hook_to_module,
        remove_hook_from_module,
        remove_hook_from_submodules,
    )
    from accel_big.loading import load_checkpoint_in_model
    from accel_big.maps.balanced import get_balanced_memory
    from accel_big.maps.check_map import check_device_map
    from accel_big.maps.device_map import clean_device_map, infer_auto_device_map
    from accel_big.maps.memory import get_max_memory
    from accel_big.maps.sizes import compute_module_sizes, find_tied_parameters
    from accel_big.offload.disk_weights import offload_state_dict
    from accel_big.offload.guard import require_held, require_whole_model

_NAMES_OF = {
    "accel_big.dispatch": (
        "cpu_offload",
        "disk_offload",
        "dispatch_model",
        "load_checkpoint_and_dispatch",
    ),
    "accel_big.hooks.align_devices": (
        "AlignDevicesHook",
        "attach_align_device_hook",
        "attach_execution_device_hook",
    ),
    "accel_big.hooks.blocks": ("attach_align_device_hook_on_blocks",),
    "accel_big.hooks.cpu_offload": (
        "CpuOffload",
        "UserCpuOffloadHook",
        "cpu_offload_with_hook",
    ),
    "accel_big.hooks.model_hook": (
        "ModelHook",
        "SequentialHook",
        "add_hook_to_module",
        "remove_hook_from_module",
        "remove_hook_from_submodules",
    ),
    "accel_big.loading": ("load_checkpoint_in_model",),
    "accel_big.maps.balanced": ("get_balanced_memory",),
    "accel_big.maps.check_map": ("check_device_map",),
    "accel_big.maps.device_map": (
        "clean_device_map",
        "infer_auto_device_map",
    ),
    "accel_big.maps.memory": ("get_max_memory",),
    "accel_big.maps.sizes": (
        "compute_module_sizes",
        "find_tied_parameters",
    ),
    "accel_big.offload.disk_weights": ("offload_state_dict",),
    "accel_big.offload.guard": (
        "require_held",
        "require_whole_model",
    ),
}
_FOUND_IN = {name: module for module, names in _NAMES_OF.items() for name in names}

__all__ = [
    "AlignDevicesHook",
    "CpuOffload",
    "ModelHook",
    "SequentialHook",
    "UserCpuOffloadHook",
    "add_hook_to_module",
    "attach_align_device_hook",
    "attach_align_device_hook_on_blocks",
    "attach_execution_device_hook",
    "check_device_map",
    "clean_device_map",
    "compute_module_sizes",
    "cpu_offload",
    "cpu_offload_with_hook",
    "disk_offload",
    "dispatch_model",
    "find_tied_parameters",
    "get_balanced_memory",
    "get_max_memory",
    "infer_auto_device_map",
    "load_checkpoint_and_dispatch",
    "load_checkpoint_in_model",
    "offload_state_dict",
    "remove_hook_from_module",
    "remove_hook_from_submodules",
    "require_held",
    "require_whole_model",
]


def __getattr__(name: str) -> Any:
    if name not in _FOUND_IN:
        raise AttributeError(f"module 'accel_big' has no attribute {name!r}")
    return getattr(import_module(_FOUND_IN[name]), name)
