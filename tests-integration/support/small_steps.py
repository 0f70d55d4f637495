"""What tests of training steps share: batches of a few numbers, and copies of weights."""

import torch
from torch import Tensor, nn

Weights = dict[str, Tensor]


def batch(step: int, rank: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """The inputs and targets of a rank in a step, for an `Mlp`.

    Shape: (2, 8) and (2, 4).
    """
    generator = torch.Generator().manual_seed(100 * step + rank)
    inputs, targets = torch.randn(2, 8, generator=generator), torch.randn(2, 4, generator=generator)
    return inputs.to(dtype), targets.to(dtype)


def copied(model: nn.Module) -> Weights:
    """The weights as they are now."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def line() -> nn.Linear:
    """A model of one weight, which is 1."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    return model
