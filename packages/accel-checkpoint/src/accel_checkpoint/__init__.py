"""Checkpoints on disk that are there whole or not at all, and run no code when they are read."""

from accel_checkpoint.background import Background, Snapshot
from accel_checkpoint.copies import copy_all
from accel_checkpoint.errors import CheckpointError
from accel_checkpoint.folder import Stage, collect, described, recover, require_replaceable, require_whole
from accel_checkpoint.load import load_checkpoint_in_model, weight_files
from accel_checkpoint.manifest import Manifest, read_manifest
from accel_checkpoint.objects import save_object
from accel_checkpoint.save import save_weights
from accel_checkpoint.shards import plan
from accel_checkpoint.sizes import size_in_bytes
from accel_checkpoint.tensorfile import TensorFile, pieces
from accel_checkpoint.tree import decode, encode
from accel_checkpoint.verify import check, damage, is_whole

__all__ = [
    "Background",
    "CheckpointError",
    "Manifest",
    "Snapshot",
    "Stage",
    "TensorFile",
    "check",
    "collect",
    "copy_all",
    "damage",
    "decode",
    "described",
    "encode",
    "is_whole",
    "load_checkpoint_in_model",
    "pieces",
    "plan",
    "read_manifest",
    "recover",
    "require_replaceable",
    "require_whole",
    "save_object",
    "save_weights",
    "size_in_bytes",
    "weight_files",
]
