"""Save checkpoints that are on the disk whole or not at all, and load them without running code."""

from accel_checkpoint.async_writer import AsyncWriter, Snapshot
from accel_checkpoint.errors import CheckpointError
from accel_checkpoint.filesystem import FileDigest
from accel_checkpoint.json_state import decode, encode
from accel_checkpoint.load import load_checkpoint_in_model, weight_files
from accel_checkpoint.manifest import Manifest, read_manifest
from accel_checkpoint.parallel_copy import parallel_copy
from accel_checkpoint.recovery import collect, recover
from accel_checkpoint.save import save_weights
from accel_checkpoint.save_object import save_object
from accel_checkpoint.staging import StagedCheckpoint, require_replaceable
from accel_checkpoint.tensor_file import TensorFile, serialize
from accel_checkpoint.verify import is_whole, require_whole, verify
from accel_checkpoint.weights.shard_plan import plan_shards
from accel_checkpoint.weights.sizes import size_in_bytes

__all__ = [
    "AsyncWriter",
    "CheckpointError",
    "FileDigest",
    "Manifest",
    "Snapshot",
    "StagedCheckpoint",
    "TensorFile",
    "collect",
    "decode",
    "encode",
    "is_whole",
    "load_checkpoint_in_model",
    "parallel_copy",
    "plan_shards",
    "read_manifest",
    "recover",
    "require_replaceable",
    "require_whole",
    "save_object",
    "save_weights",
    "serialize",
    "size_in_bytes",
    "verify",
    "weight_files",
]
