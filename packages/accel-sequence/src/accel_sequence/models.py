"""Find out how the attention and the loss of a model are reached."""

from __future__ import annotations

import sys
from typing import Any

from torch import nn

from accel_sequence.division import CannotDivide


def reach(model: nn.Module) -> list[tuple[Any, str]]:
    """Let a model's attention and loss know of divisions.

    Returns:
        The configs by which transformers' registry finds the attention of layers, with the name that each had; none for
        a model that calls `accel_sequence.attention` itself.

    Raises:
        CannotDivide: It is compiled, or has norms over tokens; or as `reach_transformers` says.
    """
    # in evaluation, where a model is proved, they look at no other tokens
    normed = {type(module).__name__ for module in model.modules() if isinstance(module, nn.modules.batchnorm._NormBase)}
    if normed:
        raise CannotDivide(
            f"{type(model).__name__} has {sorted(normed)}, whose statistics in training would be those of a"
            " part of the sequence; use another norm, or leave out sp_size and cp_size"
        )
    if any(module._compiled_call_impl or hasattr(module, "_orig_mod") for module in model.modules()):
        raise CannotDivide(
            "torch.compile of models whose sequences are divided is not there; prepare the model without torch.compile"
            " and model.compile(), or leave out sp_size and cp_size"
        )
    if "transformers" not in sys.modules:
        return []
    from accel_sequence.transformers import reach_transformers

    return reach_transformers(model)
