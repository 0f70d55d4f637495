"""Writes an object in torch's own format."""

from __future__ import annotations

from typing import Any, BinaryIO

import torch


def write_pickle(value: Any, file: BinaryIO) -> None:
    """Writes the object into the open file.

    Raises: OSError if the system refuses to write; torch alone would raise an error of its own.
    """
    try:
        torch.save(value, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise
