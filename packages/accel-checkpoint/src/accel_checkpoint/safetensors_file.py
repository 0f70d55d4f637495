"""Writes tensors into one safetensors file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

_NUMBER = re.compile(r"\(os error (\d+)\)")


def write_safetensors(tensors: Mapping[str, torch.Tensor], path: Path, metadata: Mapping[str, str]) -> None:
    """Fills the file with the tensors, and with `metadata` beside what says that they are torch's.

    Raises: OSError where the system refuses to write, in whose place the library has an error of its own.
    """
    try:
        save_file(dict(tensors), path, metadata={"format": "pt", **metadata})
    except SafetensorError as error:
        if (found := _NUMBER.search(str(error))) is None:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1]))) from error
