"""What a training run ends with, and whether two runs are the same."""

from typing import NamedTuple

import torch
from torch import Tensor


class Trained(NamedTuple):
    """Of each optimizer step the loss and the norm of gradients; the weights at the end."""

    losses: list[float]
    norms: list[float]
    weights: dict[str, Tensor]


def assert_same(found: Trained, wanted: Trained, tolerance: float) -> None:
    """Losses, norms and weights are those of another run."""
    assert len(found.losses) == len(wanted.losses) > 0
    torch.testing.assert_close(found.losses, wanted.losses, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(found.norms, wanted.norms, rtol=tolerance, atol=tolerance)
    # DistributedDataParallel puts a name before those of the model
    weights = {name.removeprefix("module."): value for name, value in found.weights.items()}
    torch.testing.assert_close(weights, wanted.weights, rtol=tolerance, atol=tolerance)
