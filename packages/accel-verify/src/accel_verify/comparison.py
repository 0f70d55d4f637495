"""Compare a step as configured with the same step of plain PyTorch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from accel_verify.step_record import AFTER, BEFORE, GRADIENT, Settings, StepRecord

#: losses are less off in half precision than gradients are
LOSS = 0.1
#: relative to the step that an optimizer makes of the same gradient, and to the largest number of a parameter
SAME_STEP, ROUNDING = 1e-4, 2e-6


class Mismatch(BaseException):
    """An error whose message names the first difference.

    It is no Exception, so that the handlers of a script do not catch it.
    """


def merge_ranks(ranks: Sequence[StepRecord], replicas: int = 1) -> StepRecord:
    """Combine the records of all ranks into one, with the losses of all and the tensors of rank 0.

    Args:
        ranks: The records of one step in rank order.
        replicas: Number of neighbours that had the same samples, whose losses count once.

    Raises:
        Mismatch: The ranks made different steps, or have different tensors.
    """
    first = ranks[0]
    for rank, record in enumerate(ranks):
        for name in ("optimizer", "micro_batches", "skipped"):
            if getattr(record, name) != getattr(first, name):
                raise Mismatch(f"{name}: {getattr(first, name)} on rank 0, {getattr(record, name)} on rank {rank}")
        for name, digest in first.digests.items():
            if record.digests.get(name) != digest:
                raise Mismatch(f"{name} is not the same on rank 0 and on rank {rank}")
    losses = [loss for record in ranks[::replicas] for loss in record.losses]
    weights = [weight for record in ranks[::replicas] for weight in record.weights]
    return replace(first, losses=losses, weights=weights, overflowed=any(record.overflowed for record in ranks))


def check_window(recorded: StepRecord, plain: StepRecord) -> None:
    """Raise if two steps have different optimizers, micro-batches or settings, or one was skipped without a cause.

    Args:
        recorded: The step as configured.
        plain: The step of plain PyTorch, which is about to be made.

    Raises:
        Mismatch: They differ, or no recorded gradient of a skipped step has an inf or nan.
    """
    if recorded.optimizer != plain.optimizer:
        raise Mismatch(f"optimizer {recorded.optimizer} stepped as configured, {plain.optimizer} in plain PyTorch")
    if recorded.micro_batches != plain.micro_batches:
        raise Mismatch(f"micro-batches before the step: {_both(recorded.micro_batches, plain.micro_batches)}")
    if recorded.skipped and not recorded.overflowed:
        raise Mismatch("skipped: the step was skipped as configured, and no gradient has an inf or nan")
    check_settings(recorded.settings, plain.settings, plain.settings)


def check_settings(recorded: Settings, plain: Settings, names: Iterable[str] | None = None) -> None:
    """Raise if learning rates or dtypes differ.

    Args:
        recorded: Settings of the run as configured.
        plain: Settings of plain PyTorch.
        names: The settings to compare. Default: all of both sides.

    Raises:
        Mismatch: A setting differs, or only one side has it.
    """
    for name in dict.fromkeys([*plain, *recorded]) if names is None else names:
        if name not in recorded or name not in plain:
            side = "in plain PyTorch" if name in recorded else "as configured"
            raise Mismatch(f"parameters: the optimizer does not have {name.removeprefix('dtype of ')} {side}")
        theirs, own = recorded[name], plain[name]
        if isinstance(theirs, float) and isinstance(own, float):
            same = math.isclose(theirs, own, rel_tol=1e-6)
        else:
            same = theirs == own
        if not same:
            raise Mismatch(f"{name}: {_both(theirs, own)}")


def check_starts(recorded: StepRecord, plain: StepRecord, names: Iterable[str]) -> None:
    """Raise if parameters differ before the step.

    Args:
        recorded: The step as configured.
        plain: The step of plain PyTorch.
        names: Names of the parameters to compare.

    Raises:
        Mismatch: The values of a parameter differ by more than rounding.
    """
    for before in map(BEFORE.format, names):
        own = plain.tensors[before]
        if _distance(recorded.tensors[before], own) > ROUNDING * _largest(own):
            raise Mismatch(f"{before} is not what it is in plain PyTorch")


def loss_difference(recorded: StepRecord, plain: StepRecord, tolerance: float) -> float:
    """Return the relative difference of the loss of an accumulation window.

    Args:
        recorded: The step as configured.
        plain: The step of plain PyTorch.
        tolerance: Largest relative difference.

    Returns:
        The difference of the mean losses, or, with weights, of the sums of losses divided by the sums of weights.

    Raises:
        Mismatch: The difference is larger than the tolerance, or than a tenth.
    """
    tolerance = min(tolerance, LOSS)
    theirs, own = _window_loss(recorded, recorded.losses), _window_loss(plain, plain.losses)
    off = abs(theirs - own) / max(_window_loss(plain, map(abs, plain.losses)), 1e-8)
    if not off <= tolerance:
        raise Mismatch(f"loss: {_both(theirs, own)}; off by {off:.3%}, {tolerance:.3%} is tolerated")
    return off


def gradient_difference(
    recorded: StepRecord, plain: StepRecord, names: Iterable[str], tolerance: float, noise: float
) -> float:
    """Return the largest relative difference of a gradient.

    A missing gradient counts as zero.

    Args:
        recorded: The step as configured.
        plain: The step of plain PyTorch.
        names: Names of the parameters to compare.
        tolerance: Largest difference, as a part of the largest entry of each gradient.
        noise: Part of the largest entry of all gradients. A smaller gradient is compared relative to this limit.

    Raises:
        Mismatch: The difference is larger than the tolerance.
    """
    gradients = [GRADIENT.format(name) for name in names]
    smallest = noise * max((_largest(plain.tensors.get(name)) for name in gradients), default=0.0)
    worst = (0.0, "")
    for name in gradients:
        theirs, own = recorded.tensors.get(name), plain.tensors.get(name)
        worst = max(worst, (_distance(theirs, own) / max(_largest(own), smallest, 1e-30), name))
    off, name = worst
    if not off <= tolerance:
        raise Mismatch(_describe(name, recorded.tensors.get(name), plain.tensors.get(name), off, tolerance))
    return off


def update_difference(recorded: StepRecord, plain: StepRecord, names: Iterable[str]) -> float:
    """Return the largest difference of a parameter after two steps with the same gradient, relative to the step.

    Args:
        recorded: The step as configured.
        plain: The step of plain PyTorch.
        names: Names of the parameters to compare.

    Raises:
        Mismatch: A difference is larger than rounding.
    """
    worst = 0.0
    for name in names:
        before, after = recorded.tensors[BEFORE.format(name)], recorded.tensors[AFTER.format(name)]
        own = plain.tensors[AFTER.format(name)]
        moved, off = _distance(own, before), _distance(after, own)
        allowed = SAME_STEP * moved + ROUNDING * _largest(own)
        worst = max(worst, off / max(moved, allowed, 1e-30))
        if not off <= allowed:
            raise Mismatch(
                f"{AFTER.format(name)}: the same gradient has moved it by up to {_distance(after, before):.4g} as"
                f" configured, by up to {moved:.4g} in plain PyTorch"
            )
    return worst


def _both(recorded: object, plain: object) -> str:
    theirs, own = (f"{value:.6g}" if isinstance(value, float) else value for value in (recorded, plain))
    return f"{theirs} as configured, {own} in plain PyTorch"


def _window_loss(record: StepRecord, losses: Iterable[float]) -> float:
    return sum(losses) / (sum(record.weights) if record.weights else max(len(record.losses), 1))


def _describe(name: str, recorded: torch.Tensor | None, plain: torch.Tensor | None, off: float, most: float) -> str:
    if recorded is None or plain is None:
        return f"{name}: it is there only {'in plain PyTorch' if recorded is None else 'as configured'}"
    theirs, own = recorded.double().flatten(), plain.double().flatten()
    text = f"{name}: norm {_both(float(theirs.norm()), float(own.norm()))}"
    factor = float(theirs @ own) / max(float(own @ own), 1e-300)
    if abs(factor - 1) > most and float((theirs - factor * own).norm()) <= most * float(theirs.norm()):
        return f"{text}; it is {factor:.4g} times that of plain PyTorch"
    return f"{text}; off by {off:.3%}, {most:.3%} is tolerated"


def _distance(recorded: torch.Tensor | None, plain: torch.Tensor | None) -> float:
    """Return the largest difference of two entries, with zeros for a tensor that is missing."""
    if recorded is None or plain is None:
        return _largest(plain if recorded is None else recorded)
    if recorded.shape != plain.shape:
        return float("inf")
    return _largest((recorded.double() - plain.double()).nan_to_num(nan=torch.inf))


def _largest(tensor: torch.Tensor | None) -> float:
    return float(tensor.abs().max()) if tensor is not None and tensor.numel() else 0.0
