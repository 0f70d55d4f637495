"""Big models: device maps, weights that stay on the host or on disk, and `accel estimate-memory`.

Importing this package does not import torch; the first use of a name does.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accel_big.loading import load_checkpoint_in_model
    from accel_big.maps.balanced import get_balanced_memory
    from accel_big.maps.check_map import check_device_map
    from accel_big.maps.device_map import clean_device_map, infer_auto_device_map
    from accel_big.maps.memory import get_max_memory
    from accel_big.maps.sizes import compute_module_sizes, find_tied_parameters
    from accel_big.offload.disk_weights import offload_state_dict

_NAMES_OF = {
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
}
_FOUND_IN = {name: module for module, names in _NAMES_OF.items() for name in names}

__all__ = [
    "check_device_map",
    "clean_device_map",
    "compute_module_sizes",
    "find_tied_parameters",
    "get_balanced_memory",
    "get_max_memory",
    "infer_auto_device_map",
    "load_checkpoint_in_model",
    "offload_state_dict",
]


def __getattr__(name: str) -> Any:
    if name not in _FOUND_IN:
        raise AttributeError(f"module 'accel_big' has no attribute {name!r}")
    return getattr(import_module(_FOUND_IN[name]), name)
