"""Names that scripts import from `utils`; nothing is defined here."""

from accel_checkpoint import load_checkpoint_in_model
from accel_ops import (
    RNGType,
    concatenate,
    convert_to_fp32,
    find_batch_size,
    get_shape,
    honor_type,
    ignorant_find_batch_size,
    is_namedtuple,
    is_torch_tensor,
    listify,
    pad_input_tensors,
    recursively_apply,
    send_to_device,
    slice_tensors,
)
from accel_parallel import CommHook as DDPCommunicationHookType
from accel_state import DistributedType

from accel.compat.operations import (
    broadcast,
    broadcast_object_list,
    copy_tensor_to_devices,
    gather,
    gather_object,
    pad_across_processes,
    reduce,
    set_seed,
    synchronize_rng_state,
    synchronize_rng_states,
)
from accel.compilation import TorchDynamoPlugin
from accel.configuration import DataLoaderConfiguration, GradientAccumulationPlugin, ProjectConfiguration
from accel.handlers import (
    AutocastKwargs,
    DistributedDataParallelKwargs,
    GradScalerKwargs,
    InitProcessGroupKwargs,
    KwargsHandler,
    ProfileKwargs,
)
from accel.tools.auto_batch_size import find_executable_batch_size
from accel.tools.progress import tqdm

__all__ = [
    "AutocastKwargs",
    "DDPCommunicationHookType",
    "DataLoaderConfiguration",
    "DistributedDataParallelKwargs",
    "DistributedType",
    "GradScalerKwargs",
    "GradientAccumulationPlugin",
    "InitProcessGroupKwargs",
    "KwargsHandler",
    "ProfileKwargs",
    "ProjectConfiguration",
    "RNGType",
    "TorchDynamoPlugin",
    "broadcast",
    "broadcast_object_list",
    "concatenate",
    "convert_to_fp32",
    "copy_tensor_to_devices",
    "find_batch_size",
    "find_executable_batch_size",
    "gather",
    "gather_object",
    "get_shape",
    "honor_type",
    "ignorant_find_batch_size",
    "is_namedtuple",
    "is_torch_tensor",
    "listify",
    "load_checkpoint_in_model",
    "pad_across_processes",
    "pad_input_tensors",
    "recursively_apply",
    "reduce",
    "send_to_device",
    "set_seed",
    "slice_tensors",
    "synchronize_rng_state",
    "synchronize_rng_states",
    "tqdm",
]
