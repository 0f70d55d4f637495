"""Compares one step as configured with the same step of plain PyTorch, thing by thing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from accel.verification.record import Event

Tensors = Mapping[str, torch.Tensor]

#: a gradient that is this much smaller than the largest of all parameters is noise: a bias before a normalisation
NOISE = {True: 0.1, False: 0.01}
#: a small cross entropy is off by as much as logits are in half precision, which is less than gradients are
LOSS = 0.1
#: of a step of the optimizer that is given the same gradient on both sides
SAME_STEP = 1e-4
ROUNDING = 2e-6


class Differs(BaseException):
    """The first thing that differs, in words; no handler of the script's own should catch it."""


@dataclass
class Found:
    """The largest differences that were within the tolerance, and the steps that fp16 skipped."""

    loss: float = 0.0
    gradient: float = 0.0
    step: float = 0.0
    skipped: list[int] = field(default_factory=list)


def micro_batches(ranks: Sequence[Event], losses: int, optimizer: int) -> None:
    """Raises: Differs where ranks, or plain PyTorch, stepped after another number of losses, or another optimizer."""
    if any(event.optimizer != optimizer for event in ranks):
        raise Differs(
            f"optimizer {[e.optimizer for e in ranks]} stepped on ranks as configured, {optimizer} in plain PyTorch"
        )
    for rank, event in enumerate(ranks):
        if len(event.losses) != losses:
            raise Differs(
                f"micro-batches: the step was made after {len(event.losses)} losses on rank {rank} as configured, after"
                f" {losses} in plain PyTorch"
            )
        if event.skipped != ranks[0].skipped:
            raise Differs(f"skipped: rank 0 {_skipped(ranks[0])} and rank {rank} {_skipped(event)}")
    if ranks[0].skipped and not any(event.overflowed for event in ranks):
        raise Differs("skipped: the step was skipped as configured, and no gradient has an inf or nan")


def learning_rates(found: Sequence[float], plain: Sequence[float]) -> None:
    """Raises: Differs for another rate, or another number of groups."""
    if len(found) != len(plain):
        raise Differs(f"learning rates: {len(found)} groups as configured, {len(plain)} in plain PyTorch")
    for group, (one, other) in enumerate(zip(found, plain, strict=True)):
        if abs(one - other) > 1e-6 * max(abs(one), abs(other)):
            raise Differs(f"learning rate of group {group}: {one:g} as configured, {other:g} in plain PyTorch")


def formats(found: Mapping[str, str], plain: Mapping[str, str]) -> None:
    """Raises: Differs for a parameter that the optimizer lacks, or that is in another dtype, or its state is."""
    for name in plain:
        if name not in found:
            raise Differs(f"parameters: the optimizer does not have {name} as configured")
        if found[name] != plain[name]:
            raise Differs(f"dtype of {name}: {found[name]} as configured, {plain[name]} in plain PyTorch")
    for name in found:
        if name not in plain:
            raise Differs(f"parameters: the optimizer has {name} as configured, and not in plain PyTorch")


def losses(ranks: Sequence[Event], plain: Event, tolerance: float, found: Found) -> None:
    """Raises: Differs for another loss of the window: its mean, or all losses over all weights."""
    tolerance = min(tolerance, LOSS)
    one, other = _window_loss(ranks), _window_loss([plain])
    scale = sum(abs(loss) for loss in plain.losses) / (sum(plain.weights) if plain.weights else len(plain.losses) or 1)
    off = abs(one - other) / max(scale, 1e-8)
    found.loss = max(found.loss, off)
    if not off <= tolerance:
        raise Differs(f"loss: {one:.6g} as configured, {other:.6g} in plain PyTorch; {_percent(off, tolerance)}")


def same_on_all_ranks(ranks: Sequence[Event], kind: str) -> None:
    """Raises: Differs that names the first tensor of a kind that is not the same on two ranks."""
    for rank, event in enumerate(ranks):
        for name, digest in ranks[0].digests.items():
            if name.startswith(kind) and event.digests.get(name) != digest:
                raise Differs(f"{_of(name)} is not the same on rank 0 and on rank {rank}")


def starts(found: Tensors, plain: Tensors) -> None:
    """Raises: Differs for a parameter that is another one before the step."""
    for name, other in plain.items():
        if _furthest(found[name], other) > ROUNDING * _largest(other):
            raise Differs(f"{_of(name)} is not what it is in plain PyTorch")


def gradients(found: Tensors, plain: Tensors, tolerance: float, half: bool, best: Found) -> None:
    """Raises: Differs for the gradient that is furthest off; a missing one counts as zero."""
    largest = max(map(_largest, plain.values()), default=0.0)
    worst = (0.0, "")
    for name in dict.fromkeys([*plain, *(one for one in found if one.startswith("gradient "))]):
        one, other = found.get(name), plain.get(name)
        if one is None or other is None:
            one = torch.zeros_like(other) if one is None and other is not None else one
            other = torch.zeros_like(one) if other is None and one is not None else other
        if one is None or other is None:
            continue
        off = _furthest(one, other) / max(_largest(other), NOISE[half] * largest, 1e-30)
        worst = max(worst, (off, name))
    off, name = worst
    best.gradient = max(best.gradient, off)
    if not off <= tolerance:
        raise Differs(_gradient_differs(name, found.get(name), plain.get(name), off, tolerance))


def updates(found: Tensors, before: Tensors, plain: Tensors, best: Found) -> None:
    """Raises: Differs for a parameter that the same gradient has moved elsewhere."""
    for name, other in plain.items():
        one, start = found.get(f"after {name}"), before[name]
        if one is None:
            continue
        moved, off = _furthest(other, start), _furthest(one, other)
        allowed = SAME_STEP * moved + ROUNDING * _largest(other)
        best.step = max(best.step, off / max(moved, allowed, 1e-30))
        if not off <= allowed:
            how_far = _furthest(one, start)
            raise Differs(
                f"{name} after the step: the same gradient has moved it by up to {how_far:.4g} as configured, by up to"
                f" {moved:.4g} in plain PyTorch"
            )


def _window_loss(events: Sequence[Event]) -> float:
    total = sum(loss for event in events for loss in event.losses)
    weights = [weight for event in events for weight in event.weights or []]
    return total / (sum(weights) if weights else max(sum(len(event.losses) for event in events), 1))


def _gradient_differs(
    name: str, one: torch.Tensor | None, other: torch.Tensor | None, off: float, tolerance: float
) -> str:
    if one is None or other is None:
        has, lacks = ("in plain PyTorch", "as configured") if one is None else ("as configured", "in plain PyTorch")
        return f"{_of(name)}: there is one {has}, and none {lacks}"
    a, b = one.double().flatten(), other.double().flatten()
    text = f"{_of(name)}: norm {float(a.norm()):.6g} as configured, {float(b.norm()):.6g} in plain PyTorch"
    factor = float(a @ b) / max(float(b @ b), 1e-300)
    if abs(factor - 1) > tolerance and float((a - factor * b).norm()) <= tolerance * float(a.norm()):
        return f"{text}; it is {factor:.4g} times that of plain PyTorch"
    return f"{text}; {_percent(off, tolerance)}"


def _percent(off: float, tolerance: float) -> str:
    return f"off by {off:.3%}, {tolerance:.3%} is tolerated"


def _of(name: str) -> str:
    kind, _, rest = name.partition(" ")
    return f"gradient of {rest}" if kind == "gradient" else f"{rest} {kind} the step"


def _skipped(event: Event) -> str:
    return "skipped the step" if event.skipped else "made it"


def _furthest(one: torch.Tensor, other: torch.Tensor) -> float:
    if one.shape != other.shape:
        return float("inf")
    return _largest((one.double() - other.double()).nan_to_num(nan=torch.inf))


def _largest(tensor: torch.Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0
