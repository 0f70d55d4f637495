"""The line through noisy points that tests for Accelerate train."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset


class RegressionDataset(Dataset[dict[str, np.float32]]):
    """Points x with y = a x + b and noise of 0.1; without a seed they differ in each process."""

    def __init__(self, a: float = 2, b: float = 3, length: int = 64, seed: int | None = None) -> None:
        draw = np.random.default_rng(seed)
        self.length = length
        self.x = draw.standard_normal(length).astype(np.float32)
        self.y = (a * self.x + b + 0.1 * draw.standard_normal(length)).astype(np.float32)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, np.float32]:
        return {"x": self.x[index], "y": self.y[index]}


class RegressionModel(nn.Module):
    """The line a x + b, with both numbers to learn."""

    def __init__(self, a: float = 0, b: float = 0) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor(float(a)))
        self.b = nn.Parameter(torch.tensor(float(b)))

    def forward(self, x: Tensor) -> Tensor:
        """The line at these points."""
        return x * self.a + self.b
