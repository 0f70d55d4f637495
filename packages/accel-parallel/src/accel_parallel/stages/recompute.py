"""Compute the activations of a block again in the backward, so that none has to be kept (activation checkpointing)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any, final

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from accel_parallel.wrap_policy import UnknownBlocks

#: the argument of transformers' blocks to which a forward appends keys and values, and a second run would do so again
CACHE = "past_key_values"


@final
class RecomputedForward:
    """A forward that keeps its inputs alone, and runs again in the backward, with the random numbers of the first run.

    Without gradients it is the plain forward. With them it is given no cache of keys and values.
    """

    def __init__(self, forward: Callable[..., Any]) -> None:
        self.forward = forward
        # Tools look at a forward's name and signature, through __wrapped__.
        self.__wrapped__ = forward
        self.__name__ = "forward"
        names = list(signature(forward).parameters)
        self._cache_place = names.index(CACHE) if CACHE in names else None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.forward(*args, **kwargs)
        if self._cache_place is not None and self._cache_place < len(args):
            args = (*args[: self._cache_place], None, *args[self._cache_place + 1 :])
        elif CACHE in kwargs:
            kwargs[CACHE] = None
        return checkpoint(self.forward, *args, use_reentrant=False, **kwargs)


def recompute(model: nn.Module, blocks: Sequence[nn.Module]) -> None:
    """Let the backward compute the activations of each block again. Names, keys and classes stay.

    Args:
        model: Model to change.
        blocks: Modules of the model.

    Raises:
        UnknownBlocks: There is no block.
        ValueError: The model does the same by itself already, or torch has no generators for its device.
    """
    if not blocks:
        raise UnknownBlocks(
            f"activation checkpointing: no block was found in {type(model).__name__}; name the classes of its blocks"
            " (transformer_cls_names_to_wrap)"
        )
    # the attribute that transformers set in models and their blocks
    if any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
        raise ValueError(
            f"activation checkpointing was asked for, and {type(model).__name__} does it already, since"
            " gradient_checkpointing_enable(); leave out one of the two"
        )
    kinds = {parameter.device.type for parameter in model.parameters()} - {"cpu", "meta"}
    if strange := [kind for kind in kinds if not hasattr(torch, kind)]:
        raise ValueError(
            f"activation checkpointing: torch draws no random numbers again on {strange[0]} (it has no"
            f" torch.{strange[0]}); leave it out, or call what the maker of the device has for it in the model"
        )
    for block in blocks:
        if not isinstance(block.forward, RecomputedForward):
            block.forward = RecomputedForward(block.forward)
