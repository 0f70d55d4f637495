"""The names that scripts import from `utils`, each from where it lives."""

from typing import TYPE_CHECKING

from accel_names.lazy_names import door

if TYPE_CHECKING:
    from accel_big import check_device_map as check_device_map
    from accel_big import clean_device_map as clean_device_map
    from accel_big import compute_module_sizes as compute_module_sizes
    from accel_big import find_tied_parameters as find_tied_parameters
    from accel_big import get_balanced_memory as get_balanced_memory
    from accel_big import get_max_memory as get_max_memory
    from accel_big import infer_auto_device_map as infer_auto_device_map
    from accel_big import load_checkpoint_in_model as load_checkpoint_in_model
    from accel_big import offload_state_dict as offload_state_dict
    from accel_names.deepspeed import DeepSpeedPlugin as DeepSpeedPlugin
    from accel_names.deepspeed import DummyOptim as DummyOptim
    from accel_names.deepspeed import DummyScheduler as DummyScheduler
    from accel_names.operations import broadcast as broadcast
    from accel_names.operations import broadcast_object_list as broadcast_object_list
    from accel_names.operations import copy_tensor_to_devices as copy_tensor_to_devices
    from accel_names.operations import gather as gather
    from accel_names.operations import gather_object as gather_object
    from accel_names.operations import pad_across_processes as pad_across_processes
    from accel_names.operations import reduce as reduce
    from accel_names.operations import set_seed as set_seed
    from accel_names.operations import synchronize_rng_state as synchronize_rng_state
    from accel_names.operations import synchronize_rng_states as synchronize_rng_states
    from accel_ops import RNGType as RNGType
    from accel_ops import concatenate as concatenate
    from accel_ops import convert_to_fp32 as convert_to_fp32
    from accel_ops import find_batch_size as find_batch_size
    from accel_ops import get_shape as get_shape
    from accel_ops import honor_type as honor_type
    from accel_ops import ignorant_find_batch_size as ignorant_find_batch_size
    from accel_ops import is_namedtuple as is_namedtuple
    from accel_ops import is_torch_tensor as is_torch_tensor
    from accel_ops import listify as listify
    from accel_ops import pad_input_tensors as pad_input_tensors
    from accel_ops import recursively_apply as recursively_apply
    from accel_ops import send_to_device as send_to_device
    from accel_ops import slice_tensors as slice_tensors
    from accel_parallel import FullyShardedDataParallelPlugin as FullyShardedDataParallelPlugin
    from accel_parallel import ParallelismConfig as ParallelismConfig
    from accel_state import DistributedType as DistributedType
    from accel_track import LoggerType as LoggerType

    from accel.compilation import TorchDynamoPlugin as TorchDynamoPlugin
    from accel.configuration import DataLoaderConfiguration as DataLoaderConfiguration
    from accel.configuration import GradientAccumulationPlugin as GradientAccumulationPlugin
    from accel.configuration import ProjectConfiguration as ProjectConfiguration
    from accel.handlers import ActivationCheckpointingKwargs as ActivationCheckpointingKwargs
    from accel.handlers import AutocastKwargs as AutocastKwargs
    from accel.handlers import DistributedDataParallelKwargs as DistributedDataParallelKwargs
    from accel.handlers import GradScalerKwargs as GradScalerKwargs
    from accel.handlers import InitProcessGroupKwargs as InitProcessGroupKwargs
    from accel.handlers import KwargsHandler as KwargsHandler
    from accel.handlers import ProfileKwargs as ProfileKwargs
    from accel.tools.auto_batch_size import find_executable_batch_size as find_executable_batch_size
    from accel.tools.progress import tqdm as tqdm

__getattr__, __dir__ = door("accel.utils")
