"""Write one object into one file, whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any, BinaryIO

import torch

from accel_checkpoint.atomic_write import atomic_write
from accel_checkpoint.errors import CheckpointError
from accel_checkpoint.tensor_file import serialize


def save_object(value: Any, path: str | Path, *, safe_serialization: bool = False) -> None:
    """Write a value with `torch.save`, or a mapping of names to tensors as safetensors.

    Args:
        value: The value.
        path: File to write.
        safe_serialization: Whether to write safetensors.

    Raises:
        CheckpointError: Safetensors cannot hold the value.
        OSError: The disk refuses. The message says what to do.
    """
    if safe_serialization and not (
        isinstance(value, Mapping) and all(isinstance(entry, torch.Tensor) for entry in value.values())
    ):
        raise CheckpointError(
            f"safetensors holds a mapping of names to tensors, found a {type(value).__name__}; use"
            " safe_serialization=False"
        )
    fill = methodcaller("writelines", serialize(value)) if safe_serialization else partial(write_pickle, value)
    atomic_write({Path(path): fill})


def write_pickle(value: Any, file: BinaryIO) -> None:
    """Write an object into an open file with `torch.save`.

    Raises:
        OSError: The system refuses to write. torch alone would raise an error of its own.
    """
    try:
        torch.save(value, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise
