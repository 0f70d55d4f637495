"""Model weights on disk: sharded safetensors, written aside and renamed; read without running code."""

from accel_checkpoint.errors import CheckpointError
from accel_checkpoint.load import load_checkpoint_in_model, weight_files
from accel_checkpoint.objects import save_object
from accel_checkpoint.save import save_weights
from accel_checkpoint.sizes import size_in_bytes

__all__ = [
    "CheckpointError",
    "load_checkpoint_in_model",
    "save_object",
    "save_weights",
    "size_in_bytes",
    "weight_files",
]
