"""Run an ordinary PyTorch training loop on any number of processes and devices.

Begin with `help(accel.Accelerator)`: its example is a whole training, with checkpoints and an evaluation. The command
`accel launch` starts a script on several processes, and `accel launch --help` lists its options.

Importing this package does not import torch; the first use of a name does.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accel_big import AlignDevicesHook as AlignDevicesHook
    from accel_big import CpuOffload as CpuOffload
    from accel_big import ModelHook as ModelHook
    from accel_big import SequentialHook as SequentialHook
    from accel_big import UserCpuOffloadHook as UserCpuOffloadHook
    from accel_big import add_hook_to_module as add_hook_to_module
    from accel_big import attach_align_device_hook as attach_align_device_hook
    from accel_big import attach_execution_device_hook as attach_execution_device_hook
    from accel_big import compute_module_sizes as compute_module_sizes
    from accel_big import cpu_offload as cpu_offload
    from accel_big import cpu_offload_with_hook as cpu_offload_with_hook
    from accel_big import disk_offload as disk_offload
    from accel_big import dispatch_model as dispatch_model
    from accel_big import find_tied_parameters as find_tied_parameters
    from accel_big import get_balanced_memory as get_balanced_memory
    from accel_big import get_max_memory as get_max_memory
    from accel_big import infer_auto_device_map as infer_auto_device_map
    from accel_big import load_checkpoint_and_dispatch as load_checkpoint_and_dispatch
    from accel_big import load_checkpoint_in_model as load_checkpoint_in_model
    from accel_big import offload_state_dict as offload_state_dict
    from accel_big import remove_hook_from_module as remove_hook_from_module
    from accel_big import remove_hook_from_submodules as remove_hook_from_submodules
    from accel_checkpoint import CheckpointError as CheckpointError
    from accel_data import skip_first_batches as skip_first_batches
    from accel_launch import debug_launcher as debug_launcher
    from accel_launch import notebook_launcher as notebook_launcher
    from accel_names.deepspeed import DeepSpeedPlugin as DeepSpeedPlugin
    from accel_names.operations import synchronize_rng_states as synchronize_rng_states
    from accel_parallel import FullyShardedDataParallelPlugin as FullyShardedDataParallelPlugin
    from accel_parallel import ParallelismConfig as ParallelismConfig
    from accel_parallel import init_empty_weights as init_empty_weights
    from accel_parallel import init_on_device as init_on_device
    from accel_state import AcceleratorState as AcceleratorState
    from accel_state import DistributedType as DistributedType
    from accel_state import PartialState as PartialState

    from accel.accelerator import Accelerator as Accelerator
    from accel.compilation import TorchDynamoPlugin as TorchDynamoPlugin
    from accel.configuration import DataLoaderConfiguration as DataLoaderConfiguration
    from accel.configuration import GradientAccumulationPlugin as GradientAccumulationPlugin
    from accel.configuration import ProjectConfiguration as ProjectConfiguration
    from accel.handlers import ActivationCheckpointingKwargs as ActivationCheckpointingKwargs
    from accel.handlers import AutocastKwargs as AutocastKwargs
    from accel.handlers import DistributedDataParallelKwargs as DistributedDataParallelKwargs
    from accel.handlers import GradScalerKwargs as GradScalerKwargs
    from accel.handlers import InitProcessGroupKwargs as InitProcessGroupKwargs
    from accel.handlers import ProfileKwargs as ProfileKwargs
    from accel.local_sgd import LocalSGD as LocalSGD
    from accel.tools.auto_batch_size import find_executable_batch_size as find_executable_batch_size
    from accel.tools.progress import tqdm as tqdm

    __version__: str

_NAMES_OF = {
    "accel.accelerator": "Accelerator",
    "accel_names.deepspeed": "DeepSpeedPlugin",
    "accel_names.operations": "synchronize_rng_states",
    "accel.compilation": "TorchDynamoPlugin",
    "accel.configuration": "DataLoaderConfiguration GradientAccumulationPlugin ProjectConfiguration",
    "accel.handlers": (
        "ActivationCheckpointingKwargs AutocastKwargs DistributedDataParallelKwargs GradScalerKwargs "
        "InitProcessGroupKwargs ProfileKwargs"
    ),
    "accel.local_sgd": "LocalSGD",
    "accel.tools.auto_batch_size": "find_executable_batch_size",
    "accel.tools.progress": "tqdm",
    "accel_big": (
        "AlignDevicesHook CpuOffload ModelHook SequentialHook UserCpuOffloadHook add_hook_to_module "
        "attach_align_device_hook attach_execution_device_hook compute_module_sizes cpu_offload "
        "cpu_offload_with_hook disk_offload dispatch_model find_tied_parameters get_balanced_memory "
        "get_max_memory infer_auto_device_map load_checkpoint_and_dispatch load_checkpoint_in_model "
        "offload_state_dict remove_hook_from_module remove_hook_from_submodules"
    ),
    "accel_checkpoint": "CheckpointError",
    "accel_data": "skip_first_batches",
    "accel_launch": "debug_launcher notebook_launcher",
    "accel_parallel": "FullyShardedDataParallelPlugin ParallelismConfig init_empty_weights init_on_device",
    "accel_state": "AcceleratorState DistributedType PartialState",
}
_MODULE_OF = {name: module for module, names in _NAMES_OF.items() for name in names.split()}

__all__ = sorted(["__version__", *_MODULE_OF])


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name not in _MODULE_OF:
        if name.startswith("_"):
            raise AttributeError(f"module 'accel' has no attribute {name!r}")
        from accel_names.lazy_names import find

        return find(name, "accel")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return __all__


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("accel")
    except PackageNotFoundError:
        return "unknown"
