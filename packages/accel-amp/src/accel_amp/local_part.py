"""The part of a tensor that this rank holds."""

from __future__ import annotations

import sys

import torch


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a tensor that this rank holds, in the memory of the tensor.

    A tensor that is not sharded is returned itself.
    """
    # nothing is divided while the module that divides has not been imported, which takes a second
    module = sys.modules.get("torch.distributed.tensor")
    if module is None or not isinstance(tensor, module.DTensor):
        return tensor
    part: torch.Tensor = tensor.to_local()
    return part
