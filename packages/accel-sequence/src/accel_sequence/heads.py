"""Exchange parts of sequences for heads, and back."""

from __future__ import annotations

from typing import Any, cast

import torch

from accel_sequence.block import split_dim
from accel_sequence.peers import SequencePeers


class _Exchange(torch.autograd.Function):
    """A step between parts of the sequence and whole sequences of some heads, and the step back for gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, peers: SequencePeers, step: Any, back: Any) -> torch.Tensor:
        ctx.peers, ctx.back = peers, back
        return step(x, peers)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return ctx.back(gradient, ctx.peers), None, None, None


def _to_heads(x: torch.Tensor, peers: SequencePeers) -> torch.Tensor:
    rows = split_dim(x, 1, peers.size, -1).transpose(0, 1).contiguous()
    return peers.all_to_all(rows).permute(1, 2, 0, 3, 4).flatten(2, 3)


def _to_parts(x: torch.Tensor, peers: SequencePeers) -> torch.Tensor:
    rows = split_dim(x, 2, peers.size, -1).permute(2, 0, 1, 3, 4).contiguous()
    return peers.all_to_all(rows).transpose(0, 1).flatten(1, 2)


def to_heads(x: torch.Tensor, peers: SequencePeers) -> torch.Tensor:
    """Return whole sequences of some heads, for a part of the sequence of all heads.

    Args:
        x: A part of the sequence; its heads have to be a multiple of the ranks.
        peers: The ranks that hold the other parts.

    Shape:
        x (B, H, L, D), returned (B, H / size, size * L, D)

    Collective:
        Every rank must call, and call backward.
    """
    return cast("torch.Tensor", _Exchange.apply(x, peers, _to_heads, _to_parts))  # type: ignore[no-untyped-call]


def to_parts(x: torch.Tensor, peers: SequencePeers) -> torch.Tensor:
    """Return a part of the sequence of all heads, for whole sequences of some heads.

    Args:
        x: Whole sequences of the heads of this rank.
        peers: The ranks that have the other heads.

    Shape:
        x (B, H / size, size * L, D), returned (B, H, L, D)

    Collective:
        Every rank must call, and call backward.
    """
    return cast("torch.Tensor", _Exchange.apply(x, peers, _to_parts, _to_heads))  # type: ignore[no-untyped-call]


def key_heads_for(keys: int, queries: int, ranks: int) -> int:
    """Return how many key heads there have to be, each repeated, so that each rank gets those of its query heads.

    Args:
        keys: Key heads of the model.
        queries: Query heads of the model, a multiple of the ranks.
        ranks: Ranks over which heads are divided.
    """
    if keys % ranks == 0:
        return keys
    return ranks if ranks % keys == 0 else queries
