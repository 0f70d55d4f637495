"""Let attention and loss of models of Transformers know of divisions, by its registries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import nn

from accel_sequence.attention import attention
from accel_sequence.division import CannotDivide, Division, active, dividing
from accel_sequence.loss import IGNORED, targets_of

#: the name of the attention in transformers' registry
NAME = "accel_sequence"
#: implementations of attention that it computes as well
REPLACED = ("sdpa", "eager", NAME)
#: losses of tokens, and whether they shift labels
SHIFTS = {"ForCausalLM": True, "ForTokenClassification": False}


@dataclass(frozen=True, eq=False, slots=True)
class DividedMask:
    """The mask that layers are given in a forward that is divided, which recomputed layers are given again.

    Args:
        division: The division of the batch.
        window: The window that the model's mask has, or None.
    """

    division: Division
    window: int | None


def reach_transformers(model: nn.Module) -> list[tuple[Any, str]]:
    """Let models of Transformers inside of a model know of divisions.

    Returns:
        The configs that name the attention, and the name that each had.

    Raises:
        CannotDivide: One of them cannot.
    """
    from transformers import AttentionInterface, PreTrainedModel
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    inside: list[Any] = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    for one in inside:
        name, found = type(one).__name__, one.config._attn_implementation
        if found not in REPLACED:
            raise CannotDivide(
                f"the attention of {name} is {found!r}, and only 'sdpa' and 'eager' are divided; load it with"
                " attn_implementation='sdpa'"
            )
        turns = {part for module in one.modules() for part in str(getattr(module, "rope_type", "")).split("'")}
        if turns & {"dynamic", "longrope"}:
            raise CannotDivide(
                f"{name} turns its positions by the length of what it is given (rope_type 'dynamic' or 'longrope'),"
                " which is a part here; leave out sp_size and cp_size"
            )
        if name.endswith((*SHIFTS, "LMHeadModel")) and not isinstance(one.loss_function, DividedLoss):
            one.loss_function = DividedLoss(one.loss_function, shifts=SHIFTS.get(one.loss_type, True))
    AttentionInterface.register(NAME, _attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, _mask)
    reached = [(module.config, module.config._attn_implementation) for module in inside]
    for config, _ in reached:
        config._attn_implementation = NAME
    return reached


@final
class DividedLoss:
    """A loss of whole sequences, made of a function that gives that of a part.

    Args:
        function: The loss function of the model.
        shifts: Whether it shifts labels by one.
    """

    def __init__(self, function: Callable[..., torch.Tensor], *, shifts: bool) -> None:
        self.function, self._shifts = function, shifts

    def __call__(
        self, logits: torch.Tensor, labels: torch.Tensor | None = None, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        division = active()
        if division is None:
            return self.function(logits, labels, *args, **kwargs)
        shift_labels, count = kwargs.pop("shift_labels", None), kwargs.pop("num_items_in_batch", None)
        whole: Any = labels if shift_labels is None else shift_labels
        targets = targets_of(whole, shifted=shift_labels is not None or not self._shifts)
        count = (targets != IGNORED).sum() if count is None else count
        local = division.local(targets, -1, IGNORED)
        if self._shifts:
            kwargs["shift_labels"] = local
        return division.shared_sum(self.function(logits, local, *args, num_items_in_batch=count, **kwargs))


def _mask(*args: Any, **kwargs: Any) -> Any:
    """Return the mask of a model: the division, or for whole sequences one that every attention takes."""
    division = active()
    if division is None:
        from transformers.masking_utils import eager_mask

        return eager_mask(*args, **kwargs)
    if kwargs.get("use_vmap"):
        raise CannotDivide(
            "the model lays a mask of its own over that of its layers, which cannot be divided; leave out sp_size and"
            " cp_size"
        )
    return DividedMask(division, kwargs.get("local_size"))


def _attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Return attention as a layer asks for it, over the ranks that its mask tells."""
    strange = [name for name in ("softcap", "position_bias") if kwargs.get(name) is not None]
    if not isinstance(attention_mask, DividedMask):
        raise CannotDivide(
            f"{type(module).__name__} was given a mask that transformers' functions for masks have not made; leave"
            " out sp_size and cp_size"
        )
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    if strange or sliding_window != attention_mask.window or (sliding_window is not None and not causal):
        raise CannotDivide(
            f"{type(module).__name__} attends with window {sliding_window}, causal={causal}, {strange}, and its mask"
            f" has window {attention_mask.window}; only a causal window that both have is divided, and no softcap or"
            " bias: set these to None in the model's config, or leave out sp_size and cp_size"
        )
    options: dict[str, Any] = {"scale": scaling, "window": sliding_window, "sinks": s_aux, "dropout_p": dropout}
    # a layer that a backward computes again has its mask still
    with dividing(attention_mask.division):
        out = attention(query, key, value, is_causal=causal, **options)
    return out.transpose(1, 2).contiguous(), None
