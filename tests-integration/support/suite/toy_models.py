"""Models and data that are small enough to check by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset


@final
class Regression(nn.Module):
    """a * x + b, with two parameters that have no dimension.

    Shape: (...) -> (...).
    """

    def __init__(self, a: float = 0.0, b: float = 0.0, *, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor(a, dtype=dtype))
        self.b = nn.Parameter(torch.tensor(b, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return self.a * x + self.b


@final
class Mlp(nn.Module):
    """Two linear layers with a tanh between them; the same seed gives the same weights, and no global RNG moves.

    Shape: (..., inputs) -> (..., outputs).
    """

    def __init__(
        self,
        inputs: int = 8,
        hidden: int = 16,
        outputs: int = 4,
        *,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        # made on meta: elsewhere the initialisation of nn.Linear draws from the global RNG
        self.first = nn.Linear(inputs, hidden, dtype=dtype, device="meta").to_empty(device="cpu")
        self.second = nn.Linear(hidden, outputs, dtype=dtype, device="meta").to_empty(device="cpu")
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.uniform_(-0.5, 0.5, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = torch.tanh(self.first(x))
        outputs: Tensor = self.second(hidden)
        return outputs


@final
class RangeDataset(Dataset[Tensor]):
    """Item i is the tensor i, and `reads` has every index that this process has asked for, in order."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.reads: list[int] = []

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Tensor:
        if not 0 <= index < self.n:
            raise IndexError(f"item {index} of a dataset of {self.n}: expected 0 to {self.n - 1}")
        self.reads.append(index)
        return torch.tensor(index)


@final
class RangeStream(IterableDataset[Tensor]):
    """All tensors 0 to n - 1 in order, for every reader: nothing is shared out among ranks or DataLoader workers."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[Tensor]:
        return (torch.tensor(index) for index in range(self.n))
