"""Find out how the attention and the loss of a model are reached."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from torch import nn

from accel_sequence.division import CannotDivide


@dataclass(frozen=True, slots=True)
class Reached:
    """The facts about a model whose forward is divided.

    Args:
        layers: Number of layers whose attention transformers' registry reaches; 0 for a model that calls
            `accel_sequence.attention` itself.
    """

    layers: int = 0


#: modules of torch that look at other positions by themselves
_MIXING = (nn.MultiheadAttention, nn.RNNBase, nn.Conv1d)


def reach(model: nn.Module) -> Reached:
    """Let a model's attention and loss know of divisions, and return what is known of them.

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
        return Reached()
    from accel_sequence.transformers import reach_transformers

    return Reached(reach_transformers(model))
