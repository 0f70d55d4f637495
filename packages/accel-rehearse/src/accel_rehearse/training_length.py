"""Find the steps of a training, and whether its schedule ends with them."""

from __future__ import annotations

from itertools import islice, pairwise
from operator import length_hint
from typing import Any

from accel.preparation import _ORIGINALS
from accel_state import AccumulationState, PartialWindow

from accel_rehearse.rehearsal import Rehearsal
from accel_rehearse.schedules import length_of


def length_of_training(rehearsal: Rehearsal) -> dict[str, Any]:
    """Return the samples and tokens of a step, the steps of an epoch and of all, and where the schedule ends.

    What is not known is None. A schedule that ends at another step than the training is a mistake.
    """
    samples = of_step = of_epoch = steps = epochs = whole = alone = end = 0
    for loader, (epochs, least, tokens) in islice(rehearsal.training.items(), 1):
        window = rehearsal.accelerator.gradient_state
        batches = length_hint(loader)
        samples = (loader.total_batch_size or 0) * window.every
        of_step = tokens * samples
        of_epoch = tokens * length_hint(loader.dataset)
        if samples:
            of_epoch = min(of_epoch, of_step * batches // window.every)
        steps = _steps(1, batches, window)
        whole = _steps(epochs, batches, window)
        # the number of a loop that a break may end early may be of batches or of steps, in a pass or in all; if it is
        # that of all steps, the training is taken to end with it
        if whole != least < batches:
            steps = 0
        if whole != least < epochs * batches:
            epochs = whole = 0
        alone = _steps(epochs, length_hint(_ORIGINALS.get(loader, loader)), window)
    parts = [part for scheduler in rehearsal.schedules for part in getattr(scheduler, "_schedulers", ())]
    for scheduler, places in rehearsal.schedules.items():
        length = length_of(scheduler)
        moves = min((after - before for before, after in pairwise(places)), default=0)
        if length and places[1:] and scheduler not in parts:
            # a schedule that stands still in a step advances once in an epoch
            end = -(-length // moves) if moves else length * steps
            # made for one process, it ends with the training of all, but for what their shares are rounded by
            if whole and end != whole and (length != alone or moves < 2):
                rehearsal.mistakes.append(
                    (
                        f"the schedule ends at step {end}, and training has {whole} steps ({epochs} epochs)",
                        rehearsal.lines["schedule"],
                        f"make it {whole * moves or epochs} long: a step advances it by {moves or f'1/{steps}'}",
                    )
                )
    found = {
        "samples_per_step": samples,
        "tokens_per_step": of_step,
        "tokens_per_epoch": of_epoch,
        "steps_per_epoch": steps,
        "epochs": epochs,
        "training_steps": whole,
        "schedule_ends_at_step": end,
    }
    return {name: number or None for name, number in found.items()}


def _steps(epochs: int, batches: int, window: AccumulationState) -> int:
    """Return the optimizer steps of epochs of so many batches."""
    if window.at_epoch_end is PartialWindow.CARRY:
        return epochs * batches // window.every
    short = window.every - 1 if window.at_epoch_end is PartialWindow.FLUSH else 0
    return epochs * ((batches + short) // window.every)
