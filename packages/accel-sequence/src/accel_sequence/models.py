"""Find out how the attention and the loss of a model are reached."""

from __future__ import annotations

import sys

from torch import nn

from accel_sequence.division import CannotDivide

#: modules of torch that look at other positions by themselves
_MIXING = (nn.MultiheadAttention, nn.RNNBase, nn.Conv1d)


def reach(model: nn.Module) -> int:
    """Let a model's attention and loss know of divisions.

    Returns:
        The number of layers whose attention transformers' registry reaches; 0 for a model that calls
        `accel_sequence.attention` itself.

    Raises:
        CannotDivide: It has parts that look at other positions by themselves. The message lists all reasons.
    """
    mixing = sorted({type(module).__name__ for module in model.modules() if isinstance(module, _MIXING)})
    if mixing:
        raise CannotDivide(
            f"{type(model).__name__} has {', '.join(mixing)}, which look at other positions by themselves, and here"
            " would see a part only; use accel_sequence.attention, or leave out sp_size and cp_size"
        )
    if "transformers" not in sys.modules:
        return 0
    from accel_sequence.transformers import reach_transformers

    return reach_transformers(model)
