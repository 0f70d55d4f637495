"""Writes an object into one file of torch's own format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch


def write_pickle(value: Any, path: Path) -> None:
    """Fills the file with the object.

    Raises: OSError where the system refuses to write, in whose place torch has an error of its own.
    """
    with path.open("wb") as file:  # of a file that torch opened by its name it would not know why
        try:
            torch.save(value, file)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise
