"""Tell a model the positions of the tokens that it was given."""

from __future__ import annotations

import torch

from accel_sequence.division import of_results


def positions(tokens: torch.Tensor) -> torch.Tensor:
    """Return the positions, in whole sequences, of the tokens that a forward was given.

    Outside of forwards, those of what the newest forward has returned.

    Args:
        tokens: Tokens, or what was made of them.

    Raises:
        CannotDivide: Nobody knows of which forward.

    Shape:
        tokens (B, T, ...), returned (1, T)
    """
    division = of_results()
    if division is None or tokens.shape[1] != division.part:
        return torch.arange(tokens.shape[1], device=tokens.device)[None]
    return division.positions(tokens.device)
