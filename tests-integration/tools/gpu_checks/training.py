"""Models and loops that the checks train by hand and with accel."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

WIDTH = 64
CLASSES = 16


def perceptron(width: int = WIDTH, depth: int = 2, *, dropout: float = 0.0, seed: int = 0) -> nn.Sequential:
    """A multi-layer perceptron, the same numbers for the same seed."""
    torch.manual_seed(seed)
    layers = list[nn.Module]()
    for _ in range(depth):
        linear = nn.Linear(width, width)
        nn.init.kaiming_uniform_(linear.weight, nonlinearity="relu")  # so that the last layer feels the first
        layers += [linear, nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*layers, nn.Linear(width, CLASSES))


def samples(count: int, width: int = WIDTH, *, seed: int = 1) -> TensorDataset:
    """Inputs and classes, on the host."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, width, generator=generator, device="cpu")
    return TensorDataset(inputs, torch.randint(CLASSES, (count,), generator=generator, device="cpu"))


def batches(device: torch.device, count: int, size: int, width: int = WIDTH) -> list[tuple[Tensor, Tensor]]:
    """Batches that are on the device already."""
    inputs, targets = samples(count * size, width).tensors
    return [
        (inputs[start : start + size].to(device), targets[start : start + size].to(device))
        for start in range(0, count * size, size)
    ]


def parameters_of(model: nn.Module) -> list[Tensor]:
    """Copies of the parameters, on the host."""
    return [parameter.detach().cpu().clone() for parameter in model.parameters()]


def equal(one: Iterator[Tensor] | list[Tensor], other: Iterator[Tensor] | list[Tensor]) -> bool:
    """Whether both hold the same bits."""
    return all(torch.equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))
