"""Refuse attention that goes around accel_sequence in a forward that is divided."""

from __future__ import annotations

from typing import Any, final

from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from accel_sequence.division import CannotDivide


@final
class NoStrayAttention(TorchFunctionMode):
    """A block in which torch's attention, and a softmax of a part's tokens for each token, are refused.

    Args:
        name: The class of the model.
        part: The number of tokens of a part.
    """

    def __init__(self, name: str, part: int) -> None:
        super().__init__()
        self._name, self._part = name, part

    def __torch_function__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch that is no attention."""
        scores = func.__name__ == "softmax" and args and args[0].shape[2:] == (self._part, self._part)
        if scores or func is scaled_dot_product_attention:
            raise CannotDivide(
                f"{self._name} computes attention by {func.__name__} over the {self._part} tokens of a part; call"
                " accel_sequence.attention in all layers, or leave out sp_size and cp_size"
            )
        return func(*args, **kwargs or {})
