"""Switches off what would differ for good reasons: dropout, and statistics of one process's batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional

SAID = "dropout is off in both runs, and batch normalisation uses its running statistics"

DROPOUTS = (
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "alpha_dropout",
    "feature_alpha_dropout",
)


@contextmanager
def replaced(owner: Any, names: dict[str, Any]) -> Iterator[None]:
    """In this block the owner has these attributes instead of its own."""
    kept = {name: vars(owner)[name] for name in names if name in vars(owner)}
    for name, value in names.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name in names:
            if name in kept:
                setattr(owner, name, kept[name])
            else:
                delattr(owner, name)


@contextmanager
def calm() -> Iterator[None]:
    """In this block nothing is dropped out, and batch normalisation does not look at the batch."""
    norm, attention = functional.batch_norm, functional.scaled_dot_product_attention
    with ExitStack() as stack:
        stack.enter_context(replaced(functional, dict.fromkeys(DROPOUTS, _kept)))
        stack.enter_context(replaced(functional, {"batch_norm": _by_running_statistics(norm)}))
        stack.enter_context(replaced(functional, {"scaled_dot_product_attention": _without_dropout(attention)}))
        # alone it would fall back to batch normalisation, and with others it would exchange statistics
        whole = nn.modules.batchnorm._BatchNorm.forward
        stack.enter_context(replaced(nn.SyncBatchNorm, {"forward": whole}))
        yield


def _kept(input: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return input


def _without_dropout(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        *rest: Any,
        **options: Any,
    ) -> torch.Tensor:
        return original(query, key, value, attn_mask, 0.0, *rest, **options)

    return attention


def _by_running_statistics(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def batch_norm(
        input: torch.Tensor,
        running_mean: torch.Tensor | None,
        running_var: torch.Tensor | None,
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        training: bool = False,
        *rest: Any,
        **options: Any,
    ) -> torch.Tensor:
        training = training and running_mean is None
        return original(input, running_mean, running_var, weight, bias, training, *rest, **options)

    return batch_norm
