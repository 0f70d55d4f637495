"""Let attention and loss of models of Transformers know of divisions, by its registries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
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
#: kinds of layers whose attention is described by its arguments
LAYER_TYPES = ("full_attention", "sliding_attention")
#: classes whose outputs belong to a token each, by the end of their names
BY_TOKEN = ("ForCausalLM", "LMHeadModel", "ForTokenClassification", "Model")
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


def reach_transformers(model: nn.Module) -> int:
    """Let models of Transformers inside of a model know of divisions, and return their number of layers.

    Raises:
        CannotDivide: One of them cannot. The message lists all reasons.
    """
    from transformers import AttentionInterface, PreTrainedModel
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    inside: list[Any] = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    nested = {module for one in inside for child in one.children() for module in child.modules()}
    tops = [one for one in inside if one not in nested]
    for top in tops:
        name, problems = type(top).__name__, _problems(model, top)
        if problems:
            raise CannotDivide(f"{name} cannot be divided along the sequence:\n  " + "\n  ".join(problems))
        has_loss = name.endswith(tuple(SHIFTS)) or "LMHead" in name
        if has_loss and not isinstance(top.loss_function, DividedLoss):
            top.loss_function = DividedLoss(top.loss_function, shifts=SHIFTS.get(top.loss_type, True))
    AttentionInterface.register(NAME, _attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, _mask)
    for module in inside:
        module.config._attn_implementation = NAME
    return sum(top.config.get_text_config().num_hidden_layers for top in tops)


def _problems(model: nn.Module, top: Any) -> list[str]:
    """Return why a model cannot be divided, in words."""
    config, problems = top.config.get_text_config(), []
    found = top.config._attn_implementation
    if found not in REPLACED:
        problems.append(
            f"its attention is {found!r}, and only 'sdpa' and 'eager' are divided; load it with"
            " attn_implementation='sdpa'"
        )
    if not (top._supports_attention_backend or top._supports_flash_attn):
        problems.append("its attention is not called by transformers' registry; leave out sp_size and cp_size")
    kinds = sorted(set(getattr(config, "layer_types", None) or ()) - set(LAYER_TYPES))
    if kinds:
        problems.append(f"it has layers of {', '.join(kinds)}, which see a part only; leave out sp_size and cp_size")
    if not type(top).__name__.endswith(BY_TOKEN):
        problems.append(
            "its outputs are not of one token each, as those of ...ForCausalLM or ...ForTokenClassification; leave out"
            " sp_size and cp_size"
        )
    if getattr(config, "output_router_logits", False):
        problems.append("output_router_logits=True: the loss of routers is one of whole sequences; set it to False")
    if getattr(top.config, "is_encoder_decoder", False) or getattr(config, "add_cross_attention", False):
        problems.append("it has an encoder and a decoder, and only self-attention is divided; leave out the sizes")
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        problems.append("adapters that put tokens in front change the length of sequences; use another, such as LoRA")
    for name, module in top.named_modules():
        if name.endswith("pooler"):
            problems.append(f"{name} takes one token for all; leave it out, as by add_pooling_layer=False")
        places = "position" in name and getattr(module, "padding_idx", None) is not None
        if places or hasattr(module, "create_position_ids_from_input_ids"):
            problems.append(f"{name} counts positions from its padding; leave out sp_size and cp_size")
    return problems


@final
class DividedLoss:
    """A loss of whole sequences, made of a function that gives that of a part.

    Args:
        function: The loss function of the model.
        shifts: Whether it shifts labels by one.

    Raises:
        CannotDivide: The function cannot be told the labels of a part, or their number in the whole.
    """

    def __init__(self, function: Callable[..., torch.Tensor], *, shifts: bool) -> None:
        self.function, self._shifts = function, shifts
        names = signature(function).parameters
        wanted = ("num_items_in_batch", *["shift_labels"] * shifts)
        passes = not shifts and "kwargs" in names and function.__module__.startswith("transformers.")
        missing = [name for name in wanted if name not in names and not passes]
        if missing:
            raise CannotDivide(
                f"the loss function {getattr(function, '__name__', type(function).__name__)} has no"
                f" {' and no '.join(missing)}, so it cannot be told the labels of a part; add them, as those of"
                " transformers have them"
            )

    def __call__(
        self,
        logits: torch.Tensor,
        labels: torch.Tensor | None = None,
        *args: Any,
        num_items_in_batch: torch.Tensor | int | None = None,
        shift_labels: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        division = active()
        if division is None:
            more = {"num_items_in_batch": num_items_in_batch, "shift_labels": shift_labels}
            kwargs |= {name: value for name, value in more.items() if value is not None}
            return self.function(logits, labels, *args, **kwargs)
        division.losses += 1
        whole = shift_labels if shift_labels is not None else labels
        if whole is None or tuple(whole.shape[-1:]) != (division.length,):
            found = None if whole is None else tuple(whole.shape)
            raise CannotDivide(f"labels of shape {found}: expected those of whole sequences, (rows, {division.length})")
        targets = targets_of(whole, shifted=shift_labels is not None or not self._shifts)
        count = (targets != IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
        local = division.local(targets, -1, IGNORED)
        if self._shifts:
            kwargs["shift_labels"] = local
        return division.shared_sum(self.function(logits, local, *args, num_items_in_batch=count, **kwargs))


def _mask(*args: Any, **kwargs: Any) -> Any:
    """Return the mask of a model: the division, or that of torch's attention for whole sequences."""
    division = active()
    if division is None:
        from transformers.masking_utils import sdpa_mask

        return sdpa_mask(*args, **kwargs)
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
    """Return attention as a layer asks for it, over the ranks if its mask is a division."""
    strange = [name for name in ("softcap", "position_bias") if kwargs.get(name) is not None]
    if not isinstance(attention_mask, DividedMask):
        if active() is not None:
            raise CannotDivide(
                f"{type(module).__name__} was given a mask that transformers' functions for masks have not made; leave"
                " out sp_size and cp_size"
            )
        kwargs |= {"dropout": dropout, "scaling": scaling, "is_causal": is_causal}
        return _undivided(module, query, key, value, attention_mask, s_aux, **kwargs)
    if strange:
        raise CannotDivide(f"{type(module).__name__} has attention with {', '.join(strange)}, which is not divided")
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    if sliding_window != attention_mask.window or (sliding_window is not None and not causal):
        raise CannotDivide(
            f"{type(module).__name__} attends with window {sliding_window}, causal={causal}, and"
            f" its mask has window {attention_mask.window}; only a causal window that both have is divided: set"
            " sliding_window to None in the model's config, or leave out sp_size and cp_size"
        )
    options: dict[str, Any] = {"scale": scaling, "window": sliding_window, "sinks": s_aux, "dropout_p": dropout}
    # a layer that a backward computes again has its mask still
    with dividing(attention_mask.division):
        out = attention(query, key, value, is_causal=causal, **options)
    return out.transpose(1, 2).contiguous(), None


def _undivided(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    sinks: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Return attention over whole sequences, as in generation."""
    if sinks is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        out, _ = sdpa_attention_forward(module, query, key, value, mask, **kwargs)
        return out, None
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(-1, -2) * kwargs["scaling"]
    queries, keys = scores.shape[-2:]
    if mask is None and queries > 1:
        mask = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    sink = sinks.to(scores.dtype)[None, :, None, None].expand(*scores.shape[:-1], 1)
    weights = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
    return (weights @ value).transpose(1, 2).contiguous(), None
