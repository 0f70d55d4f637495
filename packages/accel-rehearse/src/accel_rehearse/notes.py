"""Make the notes of a rehearsal: numbers that JSON can hold."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import torch

from accel_rehearse.allocations import bytes_of
from accel_rehearse.exchanges import by_name
from accel_rehearse.loop_bounds import length_or_none
from accel_rehearse.rehearsal import Rehearsal
from accel_rehearse.schedules import length_of


def notes_of(rehearsal: Rehearsal, rank: int, *, failed: bool) -> dict[str, Any]:
    """Return what a rehearsal has found of its rank.

    Args:
        rehearsal: A rehearsal that has ended.
        rank: The rank.
        failed: Whether the script has ended with an error.
    """
    allocations, marks, log = rehearsal.allocations, rehearsal.marks, rehearsal.exchanges.log
    parameters = [one for model in rehearsal.models for one in model.parameters()]
    states = [value for one in rehearsal.optimizers for state in one.state.values() for value in state.values()]
    whole = {"parameters": _whole(parameters), "optimizer": _whole(states)}
    begin, end = marks[-2:] if len(marks) > 1 else ((0, 0), *marks) if marks else ((0, 0), (0, 0))
    names = [[name, tuple(one.shape)] for model in rehearsal.models for name, one in model.named_parameters()]
    return {
        "rank": rank,
        "parameters_bytes": bytes_of(parameters),
        "gradients_bytes": sum(rehearsal.gradients_bytes.values()),
        "optimizer_bytes": bytes_of(states),
        "peak_bytes": allocations.peak,
        "peak_at": allocations.peak_at,
        "peak_by_kind": allocations.peak_by_kind(),
        "largest_modules": allocations.largest_modules(8),
        "evaluation_peak_bytes": allocations.evaluation_peak,
        "exchanges": by_name(log[begin[0] : end[0]]),
        "flops": end[1] - begin[1],
        "whole_bytes": whole,
        "loop": _loop(rehearsal),
        "steered": rehearsal.placeholders.steered,
        "lines": rehearsal.lines,
        "models": hashlib.sha256(repr(names).encode()).hexdigest(),
        "batches": [length_or_none(loader) for loader in rehearsal.bounds.training],
        "calls": rehearsal.exchanges.calls,
        "mistakes": rehearsal.mistakes(failed=failed),
        "refusals": [],
    }


def _whole(tensors: list[Any]) -> int:
    """Return the bytes of whole tensors, as a checkpoint has them."""
    different = {id(one): one for one in tensors if isinstance(one, torch.Tensor)}.values()
    return sum(one.numel() * one.element_size() for one in different)


def _loop(rehearsal: Rehearsal) -> dict[str, float | None]:
    """Return the samples of a step, the steps of an epoch, the epochs, and the step at which the schedule ends."""
    samples = steps = epochs = end = None
    advances = 1.0
    if rehearsal.bounds.training:
        every = rehearsal.accelerators[0].gradient_accumulation_steps
        loader, epochs = next(iter(rehearsal.bounds.training.items()))
        samples = None if loader.total_batch_size is None else loader.total_batch_size * every
        batches = length_or_none(loader)
        steps = None if batches is None else -(-batches // every)
    for scheduler, places in rehearsal.schedules.items():
        length = length_of(scheduler)
        if length is not None:
            advances = (places[-1] - places[0]) / (len(places) - 1) if len(places) > 1 else 1.0
            if not advances and steps:  # it advances once in an epoch
                advances = 1 / steps
            end = math.ceil(length / advances) if advances else None
            break
    return {
        "samples_per_step": samples,
        "steps_per_epoch": steps,
        "epochs": epochs,
        "schedule_ends_at_step": end,
        "advances": advances,
    }
