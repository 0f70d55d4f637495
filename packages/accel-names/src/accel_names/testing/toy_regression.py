"""Make the line through noisy points that tests for Accelerate train."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset


class RegressionDataset(Dataset[dict[str, Tensor]]):
    """A dataset of points x with y = a x + b and noise of 0.1.

    Args:
        a: The slope.
        b: The value at 0.
        length: How many points there are.
        seed: What they are drawn from; None for others in each process.
    """

    def __init__(self, a: float = 2, b: float = 3, length: int = 64, seed: int | None = None) -> None:
        draw = torch.Generator("cpu")
        if seed is None:
            draw.seed()
        else:
            draw.manual_seed(seed)
        self.length = length
        self.x = torch.randn(length, generator=draw, device="cpu")
        self.y = a * self.x + b + 0.1 * torch.randn(length, generator=draw, device="cpu")

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": self.x[index], "y": self.y[index]}


class RegressionModel(nn.Module):
    """The line a x + b, with both numbers to learn."""

    def __init__(self, a: float = 0, b: float = 0) -> None:
        super().__init__()
        device = torch.get_default_device()
        self.a = nn.Parameter(torch.full((), float(a), dtype=torch.float32, device=device))
        self.b = nn.Parameter(torch.full((), float(b), dtype=torch.float32, device=device))

    def forward(self, x: Tensor) -> Tensor:
        """Return the line at these points."""
        return x * self.a + self.b
