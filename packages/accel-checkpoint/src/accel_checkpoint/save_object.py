"""Writes one object to one file, whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from accel_checkpoint.atomic_write import atomic_write
from accel_checkpoint.errors import CheckpointError
from accel_checkpoint.pickle_file import write_pickle
from accel_checkpoint.safetensors_file import write_safetensors


def save_object(value: Any, path: str | Path, *, safe_serialization: bool = False) -> None:
    """Writes `value` to `path`: by `torch.save`, or as safetensors, which takes a mapping of names to tensors.

    Raises: CheckpointError for anything else that is to be safetensors.
    """
    target = Path(path)
    if not safe_serialization:
        atomic_write({target: partial(write_pickle, value)})
        return
    if not isinstance(value, Mapping) or not all(isinstance(one, torch.Tensor) for one in value.values()):
        raise CheckpointError(
            f"safetensors holds a mapping of names to tensors, found a {type(value).__name__}; use"
            " safe_serialization=False"
        )
    tensors = {name: one.contiguous() for name, one in value.items()}
    atomic_write({target: partial(write_safetensors, tensors, metadata={})})
