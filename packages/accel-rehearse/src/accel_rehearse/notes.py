"""Make the notes of a rehearsal: numbers that JSON can hold."""

from __future__ import annotations

from typing import Any

from accel_rehearse.allocations import bytes_of
from accel_rehearse.exchanges import by_name
from accel_rehearse.rehearsal import Rehearsal
from accel_rehearse.schedules import length_of


def notes_of(rehearsal: Rehearsal, rank: int, size: int) -> dict[str, Any]:
    """Return what a rehearsal has found of its rank.

    Args:
        rehearsal: A rehearsal that has ended.
        rank: The rank.
        size: Number of ranks.
    """
    allocations, marks, steps = rehearsal.allocations, rehearsal.marks, rehearsal.bounds.steps
    parameters = [one for model in rehearsal.models for one in model.parameters()]
    states = [value for one in rehearsal.optimizers for state in one.state.values() for value in state.values()]
    last = min(steps, len(marks))
    begin = marks[last - 2] if last > 1 else (0, 0)
    end = marks[last - 1] if last else begin
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
        "exchanges": by_name(rehearsal.exchanges.log[begin[0] : end[0]]),
        "flops": end[1] - begin[1],
        "steps": len(marks),
        "loop": _loop(rehearsal),
        "steered": rehearsal.placeholders.steered,
    }


def _loop(rehearsal: Rehearsal) -> dict[str, int | None]:
    """Return the samples of a step, the steps of an epoch, the epochs, and the step at which the schedule ends."""
    samples = steps = epochs = None
    if rehearsal.accelerators and rehearsal.bounds.training:
        every = rehearsal.accelerators[0].gradient_accumulation_steps
        loader, epochs = next(iter(rehearsal.bounds.training.items()))
        samples = None if loader.total_batch_size is None else loader.total_batch_size * every
        steps = _length(loader)
        steps = None if steps is None else -(-steps // every)
    return {
        "samples_per_step": samples,
        "steps_per_epoch": steps,
        "epochs": epochs,
        "schedule_ends_at_step": _end_of_schedule(rehearsal, steps),
    }


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:  # a stream
        return None


def _end_of_schedule(rehearsal: Rehearsal, steps_per_epoch: int | None) -> int | None:
    for scheduler, places in rehearsal.schedules.items():
        length = length_of(scheduler)
        if length is None:
            continue
        advances = (places[-1] - places[0]) / (len(places) - 1) if len(places) > 1 else 1
        if advances:
            return -(-length // max(int(advances), 1))
        return None if steps_per_epoch is None else length * steps_per_epoch
    return None
