"""Layers of models that repeat one layer."""

import torch
from torch import Tensor, nn


class Layer(nn.Module):
    """The tanh of a linear layer."""

    def __init__(self, width: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width, dtype=dtype)

    def forward(self, hidden: Tensor) -> Tensor:
        return torch.tanh(self.inner(hidden))


class Block(nn.Module):
    """A residual block with a norm, and two layers that a plan can divide."""

    def __init__(self, width: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, dtype=dtype)
        self.up = nn.Linear(width, 2 * width, dtype=dtype)
        self.down = nn.Linear(2 * width, width, dtype=dtype)

    def forward(self, hidden: Tensor) -> Tensor:
        added: Tensor = self.down(torch.tanh(self.up(self.norm(hidden))))
        return hidden + added
