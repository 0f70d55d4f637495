"""Tell a model the positions of the tokens that it was given."""

from __future__ import annotations

import torch

from accel_sequence.division import current


def positions(tokens: torch.Tensor) -> torch.Tensor:
    """Return the positions, in whole sequences, of the tokens that a forward was given.

    Args:
        tokens: Tokens, or what was made of them.

    Shape:
        tokens (B, T, ...), returned (1, T)
    """
    division = current()
    if division is None:
        return torch.arange(tokens.shape[1], device=tokens.device)[None]
    division.asked_positions = True
    return division.positions(tokens.device)
