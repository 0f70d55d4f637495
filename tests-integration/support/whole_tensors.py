"""Copies of tensors that ranks hold in parts."""

from torch import Tensor
from torch.distributed.tensor import DTensor


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, detached.

    Collective: every rank that holds a part must call.
    """
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()
