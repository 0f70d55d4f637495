"""A model of a script, whose attention and positions are those of accel_sequence."""

from __future__ import annotations

from accel_sequence import attention, positions
from torch import Tensor, nn

VOCABULARY, WIDTH, LENGTH = 16, 8, 13


class Block(nn.Module):
    """Attention and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.projections, self.output = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        query, key, value = self.projections(hidden).view(*hidden.shape[:2], 3, 2, -1).permute(2, 0, 3, 1, 4)
        out: Tensor = hidden + self.output(attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2))
        return out


class Own(nn.Module):
    """A model of a script, which knows nothing of a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.tokens(tokens) + self.places(positions(tokens))
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.head(hidden)
        return logits
