"""Tar files of numbers for webdataset."""

from pathlib import Path
from typing import Any

import torch
import webdataset
from torch import Tensor


def write_tars(folder: Path, tars: int, of_each: int) -> str:
    """Writes tar files of numbers that go on from file to file, and returns the folder."""
    for tar in range(tars):
        with webdataset.TarWriter(str(folder / f"{tar:03d}.tar")) as writer:
            for row in range(of_each):
                at = tar * of_each + row
                writer.write({"__key__": f"{at:06d}", "id.txt": str(at)})
    return str(folder)


def number(sample: dict[str, Any]) -> Tensor:
    """The number of a sample of such a file."""
    return torch.tensor(int(sample["id.txt"]))
