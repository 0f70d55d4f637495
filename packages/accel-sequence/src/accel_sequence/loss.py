"""Compute the loss of sequences that are divided over ranks: the mean over the real tokens of whole sequences."""

from __future__ import annotations

from typing import Literal

import torch
from torch.nn.functional import cross_entropy, pad

from accel_sequence.division import CannotDivide, latest, of_results

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
    division = latest()
    targets = targets_of(labels, shifted=shifted)
    if division is not None and (logits.shape[1], labels.shape[1]) == (division.part, division.length):
        local = division.local(targets, -1, IGNORED)
        total = division.shared_sum(_sum(logits, local))
    elif logits.shape[1] == labels.shape[1]:
        total = _sum(logits, targets)
    else:
        raise CannotDivide(
            f"loss: logits have {logits.shape[1]} positions and labels {labels.shape[1]}, and are not of the newest"
            " forward that was divided; give its logits as they are, and labels as the loader does: instead of"
            " labels[:, 1:] with shifted=True, whole labels with shifted=False"
        )
    return total / (targets != IGNORED).sum() if reduction == "mean" else total


def _sum(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    wide = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    return cross_entropy(wide.flatten(0, -2), targets.flatten(), ignore_index=IGNORED, reduction="sum")


def whole(x: torch.Tensor, dim: int = 1) -> torch.Tensor:
    """Return a result of the newest forward for whole sequences, without gradients.

    Losses of several parts are summed by `total`, which has gradients.

    Args:
        x: A tensor of this rank's part, such as predictions, or of whole sequences, which comes back as it is.
        dim: The dim of the sequence.

    Raises:
        CannotDivide: A forward without gradients came after, and the length does not tell part and whole apart.

    Collective:
        Every rank that shares the sequences must call.
    """
    division = latest()
    if division is None or x.shape[dim] != division.part:
        return x
    if division.superseded:
        raise CannotDivide(
            f"whole: {division.part} positions may be those of a part, or the whole ones of a forward without gradients"
            " that came after; call it right after the forward, and not for outputs without gradients"
        )
    return division.whole(x, dim)


def part(x: torch.Tensor, dim: int = 1, *, fill: float = 0) -> torch.Tensor:
    """Return what a tensor of whole sequences has for the part of this rank, as the newest forward was divided.

    On one process, and after a forward without gradients, whose outputs are whole, it comes back as it is.

    Args:
        x: A tensor of whole sequences, as the loader gives it.
        dim: The dim of the sequence.
        fill: The number for tokens that were added to divide the length.

    Raises:
        CannotDivide: It is not as long as the sequences, or nobody knows of which forward.
    """
    division = of_results()
    return x if division is None else division.local(x, dim, fill)


def total(x: torch.Tensor) -> torch.Tensor:
    """Return the sum of what the ranks have computed for their parts, the same on each, with gradients.

    On one process, and after a forward without gradients, whose outputs are whole, it comes back as it is.

    Args:
        x: A sum over the tokens of the part, in which those that were added count nothing.

    Raises:
        CannotDivide: Nobody knows of which forward.

    Collective:
        Every rank that shares the sequences must call.
    """
    division = of_results()
    return x if division is None else division.shared_sum(x)
