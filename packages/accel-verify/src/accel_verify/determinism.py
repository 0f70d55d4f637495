"""Switches off dropout and the statistics of a batch, which differ for good reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.nn import functional

DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


@contextmanager
def deterministic() -> Iterator[None]:
    """In this block nothing is dropped out, and batch normalisation does not look at the batch."""
    norm = functional.batch_norm
    norm_by_statistics = _with_argument(norm, 5, "training", False)

    def batch_norm(input: torch.Tensor, running_mean: torch.Tensor | None, *rest: Any, **options: Any) -> torch.Tensor:
        return (norm if running_mean is None else norm_by_statistics)(input, running_mean, *rest, **options)

    changed: dict[str, Any] = dict.fromkeys(DROPOUTS, lambda input, *_, **__: input)
    attention = functional.scaled_dot_product_attention
    changed["scaled_dot_product_attention"] = _with_argument(attention, 4, "dropout_p", 0.0)
    # alone it would fall back to batch normalisation, and with others it would exchange statistics
    whole = nn.modules.batchnorm._BatchNorm.forward
    with patch.multiple(functional, batch_norm=batch_norm, **changed), patch.object(nn.SyncBatchNorm, "forward", whole):
        yield


def _with_argument(function: Callable[..., Any], position: int, name: str, value: object) -> Callable[..., Any]:
    """The function, which is always called with this value of the argument `name`."""

    def call(*arguments: Any, **options: Any) -> Any:
        if len(arguments) > position:
            return function(*arguments[:position], value, *arguments[position + 1 :], **options)
        return function(*arguments, **{**options, name: value})

    return call
