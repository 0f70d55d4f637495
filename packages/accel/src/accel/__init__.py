"""Run an ordinary PyTorch training loop on any number of processes and devices.

Begin with `help(accel.Accelerator)`: its example is a whole training, with checkpoints and an evaluation. The command
`accel launch` starts a script on several processes, and `accel launch --help` lists its options.

Importing this package does not import torch; the first use of a name does.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accel_big import (
        AlignDevicesHook,
        CpuOffload,
        ModelHook,
        SequentialHook,
        UserCpuOffloadHook,
        add_hook_to_module,
        attach_align_device_hook,
        attach_execution_device_hook,
        compute_module_sizes,
        cpu_offload,
        cpu_offload_with_hook,
        disk_offload,
        dispatch_model,
        find_tied_parameters,
        get_balanced_memory,
        get_max_memory,
        infer_auto_device_map,
        load_checkpoint_and_dispatch,
        load_checkpoint_in_model,
        offload_state_dict,
        remove_hook_from_module,
        remove_hook_from_submodules,
    )
    from accel_checkpoint import CheckpointError
    from accel_data import skip_first_batches
    from accel_launch import debug_launcher, notebook_launcher
    from accel_names.deepspeed import DeepSpeedPlugin
    from accel_names.operations import synchronize_rng_states
    from accel_parallel import FullyShardedDataParallelPlugin, ParallelismConfig, init_empty_weights, init_on_device
    from accel_state import AcceleratorState, DistributedType, PartialState

    from accel.accelerator import Accelerator
    from accel.compilation import TorchDynamoPlugin
    from accel.configuration import DataLoaderConfiguration, GradientAccumulationPlugin, ProjectConfiguration
    from accel.handlers import (
        ActivationCheckpointingKwargs,
        AutocastKwargs,
        DistributedDataParallelKwargs,
        GradScalerKwargs,
        InitProcessGroupKwargs,
        ProfileKwargs,
    )
    from accel.local_sgd import LocalSGD
    from accel.tools.auto_batch_size import find_executable_batch_size
    from accel.tools.progress import tqdm

    __version__: str

_NAMES_OF = {
    "accel.accelerator": ("Accelerator",),
    "accel_names.deepspeed": ("DeepSpeedPlugin",),
    "accel_names.operations": ("synchronize_rng_states",),
    "accel.compilation": ("TorchDynamoPlugin",),
    "accel.configuration": ("DataLoaderConfiguration", "GradientAccumulationPlugin", "ProjectConfiguration"),
    "accel.handlers": (
        "ActivationCheckpointingKwargs",
        "AutocastKwargs",
        "DistributedDataParallelKwargs",
        "GradScalerKwargs",
        "InitProcessGroupKwargs",
        "ProfileKwargs",
    ),
    "accel.local_sgd": ("LocalSGD",),
    "accel.tools.auto_batch_size": ("find_executable_batch_size",),
    "accel.tools.progress": ("tqdm",),
    "accel_big": (
        "AlignDevicesHook",
        "CpuOffload",
        "ModelHook",
        "SequentialHook",
        "UserCpuOffloadHook",
        "add_hook_to_module",
        "attach_align_device_hook",
        "attach_execution_device_hook",
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
    ),
    "accel_checkpoint": ("CheckpointError",),
    "accel_data": ("skip_first_batches",),
    "accel_launch": ("debug_launcher", "notebook_launcher"),
    "accel_parallel": ("FullyShardedDataParallelPlugin", "ParallelismConfig", "init_empty_weights", "init_on_device"),
    "accel_state": ("AcceleratorState", "DistributedType", "PartialState"),
}
_FOUND_IN = {name: module for module, names in _NAMES_OF.items() for name in names}

__all__ = [
    "Accelerator",
    "AcceleratorState",
    "ActivationCheckpointingKwargs",
    "AlignDevicesHook",
    "AutocastKwargs",
    "CheckpointError",
    "CpuOffload",
    "DataLoaderConfiguration",
    "DeepSpeedPlugin",
    "DistributedDataParallelKwargs",
    "DistributedType",
    "FullyShardedDataParallelPlugin",
    "GradScalerKwargs",
    "GradientAccumulationPlugin",
    "InitProcessGroupKwargs",
    "LocalSGD",
    "ModelHook",
    "ParallelismConfig",
    "PartialState",
    "ProfileKwargs",
    "ProjectConfiguration",
    "SequentialHook",
    "TorchDynamoPlugin",
    "UserCpuOffloadHook",
    "__version__",
    "add_hook_to_module",
    "attach_align_device_hook",
    "attach_execution_device_hook",
    "compute_module_sizes",
    "cpu_offload",
    "cpu_offload_with_hook",
    "debug_launcher",
    "disk_offload",
    "dispatch_model",
    "find_executable_batch_size",
    "find_tied_parameters",
    "get_balanced_memory",
    "get_max_memory",
    "infer_auto_device_map",
    "init_empty_weights",
    "init_on_device",
    "load_checkpoint_and_dispatch",
    "load_checkpoint_in_model",
    "notebook_launcher",
    "offload_state_dict",
    "remove_hook_from_module",
    "remove_hook_from_submodules",
    "skip_first_batches",
    "synchronize_rng_states",
    "tqdm",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name not in _FOUND_IN:
        if name.startswith("_"):
            raise AttributeError(f"module 'accel' has no attribute {name!r}")
        from accel_names.lazy_names import find

        return find(name, "accel")
    return getattr(import_module(_FOUND_IN[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("accel")
    except PackageNotFoundError:
        return "unknown"
