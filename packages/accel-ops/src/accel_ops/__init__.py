"""Gather, reduce, broadcast, pad and move nested tensors between processes, and make their generators equal."""

from accel_ops.agree import ShapeMismatch
from accel_ops.batch_size import find_batch_size, ignorant_find_batch_size
from accel_ops.broadcast import broadcast, broadcast_object_list
from accel_ops.gather import gather, gather_object
from accel_ops.metrics import gather_for_metrics
from accel_ops.move import send_to_device
from accel_ops.pad import pad_across_processes, pad_input_tensors
from accel_ops.reduce import reduce
from accel_ops.rng import RNGType, set_seed, synchronize_rng_state, synchronize_rng_states
from accel_ops.tree import (
    concatenate,
    convert_to_fp32,
    get_shape,
    honor_type,
    is_namedtuple,
    is_torch_tensor,
    listify,
    recursively_apply,
    same_mapping,
    slice_tensors,
)

__all__ = [
    "RNGType",
    "ShapeMismatch",
    "broadcast",
    "broadcast_object_list",
    "concatenate",
    "convert_to_fp32",
    "find_batch_size",
    "gather",
    "gather_for_metrics",
    "gather_object",
    "get_shape",
    "honor_type",
    "ignorant_find_batch_size",
    "is_namedtuple",
    "is_torch_tensor",
    "listify",
    "pad_across_processes",
    "pad_input_tensors",
    "recursively_apply",
    "reduce",
    "same_mapping",
    "send_to_device",
    "set_seed",
    "slice_tensors",
    "synchronize_rng_state",
    "synchronize_rng_states",
]
