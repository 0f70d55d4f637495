"""Run big models by device maps, keep weights on the host or on disk, and estimate memory.

Importing this package does not import torch; the first use of a name does.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accel_big.dispatch import cpu_offload as cpu_offload
    from accel_big.dispatch import disk_offload as disk_offload
    from accel_big.dispatch import dispatch_model as dispatch_model
    from accel_big.dispatch import load_checkpoint_and_dispatch as load_checkpoint_and_dispatch
    from accel_big.hooks.align_devices import AlignDevicesHook as AlignDevicesHook
    from accel_big.hooks.align_devices import attach_align_device_hook as attach_align_device_hook
    from accel_big.hooks.align_devices import attach_execution_device_hook as attach_execution_device_hook
    from accel_big.hooks.blocks import attach_align_device_hook_on_blocks as attach_align_device_hook_on_blocks
    from accel_big.hooks.cpu_offload import CpuOffload as CpuOffload
    from accel_big.hooks.cpu_offload import UserCpuOffloadHook as UserCpuOffloadHook
    from accel_big.hooks.cpu_offload import cpu_offload_with_hook as cpu_offload_with_hook
    from accel_big.hooks.model_hook import ModelHook as ModelHook
    from accel_big.hooks.model_hook import SequentialHook as SequentialHook
    from accel_big.hooks.model_hook import add_hook_to_module as add_hook_to_module
    from accel_big.hooks.model_hook import remove_hook_from_module as remove_hook_from_module
    from accel_big.hooks.model_hook import remove_hook_from_submodules as remove_hook_from_submodules
    from accel_big.loading import load_checkpoint_in_model as load_checkpoint_in_model
    from accel_big.maps.balanced import get_balanced_memory as get_balanced_memory
    from accel_big.maps.check_map import check_device_map as check_device_map
    from accel_big.maps.device_map import clean_device_map as clean_device_map
    from accel_big.maps.device_map import infer_auto_device_map as infer_auto_device_map
    from accel_big.maps.memory import get_max_memory as get_max_memory
    from accel_big.maps.sizes import compute_module_sizes as compute_module_sizes
    from accel_big.maps.sizes import find_tied_parameters as find_tied_parameters
    from accel_big.offload.disk_weights import offload_state_dict as offload_state_dict
    from accel_big.offload.guard import require_held as require_held
    from accel_big.offload.guard import require_whole_model as require_whole_model

_NAMES_OF = {
    "accel_big.dispatch": "cpu_offload disk_offload dispatch_model load_checkpoint_and_dispatch",
    "accel_big.hooks.align_devices": "AlignDevicesHook attach_align_device_hook attach_execution_device_hook",
    "accel_big.hooks.blocks": "attach_align_device_hook_on_blocks",
    "accel_big.hooks.cpu_offload": "CpuOffload UserCpuOffloadHook cpu_offload_with_hook",
    "accel_big.hooks.model_hook": (
        "ModelHook SequentialHook add_hook_to_module remove_hook_from_module remove_hook_from_submodules"
    ),
    "accel_big.loading": "load_checkpoint_in_model",
    "accel_big.maps.balanced": "get_balanced_memory",
    "accel_big.maps.check_map": "check_device_map",
    "accel_big.maps.device_map": "clean_device_map infer_auto_device_map",
    "accel_big.maps.memory": "get_max_memory",
    "accel_big.maps.sizes": "compute_module_sizes find_tied_parameters",
    "accel_big.offload.disk_weights": "offload_state_dict",
    "accel_big.offload.guard": "require_held require_whole_model",
}
_MODULE_OF = {name: module for module, names in _NAMES_OF.items() for name in names.split()}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'accel_big' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)
