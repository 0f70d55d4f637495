"""Compute the loss of sequences that are divided over ranks: the mean over the real tokens of whole sequences."""

from __future__ import annotations

from typing import Literal

import torch
from torch.nn.functional import cross_entropy, pad

from accel_sequence.division import CannotDivide, active, newest

IGNORED = -100


def targets_of(labels: torch.Tensor, *, shifted: bool) -> torch.Tensor:
    """Return for each position the token to predict there.

    Args:
        labels: The tokens of whole sequences.
        shifted: Whether each label is already the token after its position.
    """
    return labels if shifted else pad(labels[..., 1:], (0, 1), value=IGNORED)


def loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    *,
    shifted: bool,
    reduction: Literal["mean", "sum"] = "mean",
) -> torch.Tensor:
    """Return the cross-entropy of whole sequences, the same number on each rank that shares them.

    It belongs to the newest forward of a prepared model. On one process it is torch's `cross_entropy` of all tokens
    whose label is not -100.

    Args:
        logits: The logits of this rank's part, as the model returns them in training, or of whole sequences, as it
            returns them without gradients.
        labels: The labels of whole sequences, as the loader gives them.
        shifted: Whether each label is already the token to predict at its position. False shifts them by one here.
        reduction: "mean" over the labels of whole sequences, or their "sum", for `backward(loss, weight=...)`.

    Raises:
        CannotDivide: Logits are neither of the part nor of the whole of these labels.

    Shape:
        logits (B, part or T, V), labels (B, T)

    Collective:
        Every rank that shares the sequences must call.
    """
    division = active() or newest()
    targets = targets_of(labels, shifted=shifted)
    if division is not None and (logits.shape[1], labels.shape[1]) == (division.part, division.length):
        division.losses += 1
        local = division.local(targets, -1, IGNORED)
        total = division.shared_sum(_sum(logits, local))
    elif logits.shape[1] == labels.shape[1]:
        total = _sum(logits, targets)
    else:
        raise CannotDivide(
            f"loss: logits have {logits.shape[1]} positions and labels {labels.shape[1]}, and are not of the newest"
            " forward that was divided; give logits of the newest forward of the prepared model, and labels of whole"
            " sequences, as the loader gives them"
        )
    return total / (targets != IGNORED).sum() if reduction == "mean" else total


def _sum(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    wide = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    return cross_entropy(wide.flatten(0, -2), targets.flatten(), ignore_index=IGNORED, reduction="sum")


def whole(x: torch.Tensor, dim: int = 1) -> torch.Tensor:
    """Return a result of the newest forward for whole sequences, without gradients.

    Args:
        x: A tensor of this rank's part, such as predictions, or of whole sequences, which comes back as it is.
        dim: The dim of the sequence.

    Raises:
        CannotDivide: A forward without gradients came after, and the length does not tell part and whole apart.

    Collective:
        Every rank that shares the sequences must call.
    """
    division = active() or newest()
    if division is None or x.shape[dim] != division.part:
        return x
    if division.superseded:
        raise CannotDivide(
            f"whole: {division.part} positions may be those of a part, or the whole ones of a forward without gradients"
            " that came after; call it right after the forward, and not for outputs without gradients"
        )
    return division.whole(x, dim)
