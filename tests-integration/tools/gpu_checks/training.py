"""Models and loops that the checks train by hand and with accel."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention
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


class Block(nn.Module):
    """Attention and a perceptron, each after a norm and beside what passes through."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.norm, self.norm_between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention_in, self.attention_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Shape: (batch, tokens, width) -> the same."""
        query, key, value = self.attention_in(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(seen.transpose(1, 2).flatten(2))
        x = x + self.narrow(gelu(self.wide(self.norm_between(x))))
        return x


class Language(nn.Module):
    """Guesses words by a stack of transformer blocks; 24 blocks of width 1024 have 300 million parameters."""

    def __init__(self, words: int, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight
        nn.init.normal_(self.embed.weight, std=0.02)  # so that the first guesses are even

    def forward(self, tokens: Tensor) -> Tensor:
        """Shape: (batch, tokens) -> (batch * tokens, words)."""
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        scores: Tensor = self.head(x)
        return scores.flatten(0, 1)


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


def texts(device: torch.device, count: int, rows: int, tokens: int, words: int) -> list[tuple[Tensor, Tensor]]:
    """Batches of texts for a `Language`, and words to guess that nobody can know but by heart.

    Args:
        device: Where the batches are.
        count: Number of batches.
        rows: Texts of a batch.
        tokens: Words of a text.
        words: Words that there are.
    """
    generator = torch.Generator().manual_seed(1)
    shape = (2, count, rows, tokens)
    inputs, targets = torch.randint(words, shape, generator=generator, device="cpu").to(device)
    return [(text, right.flatten()) for text, right in zip(inputs, targets, strict=True)]
