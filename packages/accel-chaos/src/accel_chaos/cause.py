"""Name the likely cause of a run that did not recover, by the first state that differs."""

from __future__ import annotations

import re
from itertools import zip_longest
from math import isclose
from typing import Any

from accel_chaos.history import History, costs
from accel_chaos.step_log import WEIGHTS, Attempt

#: the last line of a traceback, with or without the name of a rank in front
_ERROR = re.compile(r"^(?:\[\S+\] ?)?\s*((?:\w+\.)*\w*(?:Error|Exception|Mismatch|Exit|Refused)\b.*)$", re.MULTILINE)


def find_cause(
    reference: History, history: History, raised: list[dict[str, Any]], *, near: bool, lost: int, repeated: int
) -> str | None:
    """Return the likely cause of a run that did not recover, or None if nothing is wrong or it is not known.

    Args:
        reference: The undisturbed run.
        history: The run with faults.
        raised: The faults, as their marks tell.
        near: Whether the final weights are those of the undisturbed run, but for rounding.
        lost: Number of samples that were lost.
        repeated: Number of samples that were repeated.
    """
    if (words := _unheard(reference, history, raised)) is not None:
        return words
    if not history.ended and (words := _failed(history, raised)) is not None:
        return words
    for attempt in history.attempts:
        if (words := _torn(reference, history, attempt)) is not None:
            return words
    scale = _differing(reference, history, "loss scale")
    same_length = len(reference.steps) == len(history.steps) or _resized(reference, history)
    if history.ended and near and not lost and not repeated and same_length and scale is None:
        return None
    first = _first_difference(reference, history)
    if first is None:
        if scale is not None:
            return f"the loss scale was forgotten: it differs {scale}; it is not in what is saved and loaded"
        return _of_length(reference, history) or _of_states(reference, history.attempts[-1])
    number, what = first
    attempt, step = history.steps[number]
    if attempt is history.attempts[0] and (not raised or step.time < raised[0]["time"]):
        return (
            f"the script is not deterministic: {what} of step {number} differ before the first fault; seed everything"
            " that draws random numbers (accel.utils.set_seed)"
        )
    if what == "samples":
        return _of_samples(reference, history, attempt, number)
    if what == "learning rates":
        return _of_rates(reference, history, attempt, number)
    return _of_states(reference, attempt) or f"unknown: the losses of step {number} differ first"


def _resized(reference: History, history: History) -> bool:
    return any(attempt.world != reference.world for attempt in history.attempts)


def _unheard(reference: History, history: History, raised: list[dict[str, Any]]) -> str | None:
    """Return words for a preemption that the script notes and does not act on."""
    starts = _epochs(reference)
    for fault, cost in zip(raised, costs(history, raised), strict=True):
        own = [attempt for attempt in history.attempts if attempt.name == fault["attempt"] and attempt.steps]
        last = [one for one in raised if one["attempt"] == fault["attempt"]][-1] is fault
        if fault["kind"] not in ("SIGTERM", "resize") or not (last and own and own[0].steps[-1].noted):
            continue
        ended = (own[0].base or 0) + len(own[0].steps)
        # a script may ask at the end of an epoch
        passed = own[0].ended is not None and any(fault["step"] < start < ended for start in starts)
        if cost["steps_repeated"] or passed:
            lost = "it trained on" if passed else f"{cost['steps_repeated']} steps were lost"
            return (
                f"a save that a signal asks for never came: the script notes SIGTERM, and {lost} after fault"
                f" {fault['number']}; ask accelerator.stop_requested() after each step, and call save_and_stop()"
            )
    return None


def _failed(history: History, raised: list[dict[str, Any]]) -> str | None:
    """Return words for a script that fails when it starts again."""
    output = (history.folder / "output.txt").read_text(encoding="utf-8", errors="replace")
    errors = [error for error in _ERROR.findall(output) if "accel chaos" not in error and "ChaosFault" not in error]
    said = f" ({errors[-1][:200]})" if errors else ""
    cut = [fault for fault in raised if fault["phase"] in ("save", "rename") or fault["kind"] == "full-disk"]
    if cut and cut[-1] is raised[-1]:
        return f"a checkpoint was committed half: a save was cut short, and what it left cannot be loaded{said}"
    return f"the script fails when it starts again{said}" if raised and said else None


def _differing(reference: History, history: History, name: str) -> str | None:
    """Return where a state differs first, in words, or None."""
    for number, (ours, theirs) in enumerate(zip(history.steps, reference.steps, strict=False)):
        if ours[1].states.get(name) != theirs[1].states.get(name):
            return f"before step {number}"
    ends = [run.attempts[-1].ended for run in (reference, history) if run.attempts]
    if len(ends) == 2 and None not in ends and ends[0].get(name) != ends[1].get(name):  # type: ignore[union-attr]
        return "at the end"
    return None


def _first_difference(reference: History, history: History) -> tuple[int, str] | None:
    """Return the first committed step that differs from the undisturbed run, and what differs."""
    resized = _resized(reference, history)
    exact = reference.world < 3 and not resized
    for number in range(min(len(reference.steps), len(history.steps))):
        ours, theirs = history.at(number), reference.at(number)
        if history.samples([number]) != reference.samples([number]):
            return number, "samples"
        for one, other in zip_longest(ours, theirs) if not resized else zip(ours, theirs, strict=False):
            if one is None or other is None:
                return number, "processes"
            if one.rates != other.rates:
                return number, "learning rates"
            pairs = list(zip(one.losses, other.losses, strict=False))
            if exact and pairs and any(left != right for left, right in pairs):
                return number, "losses"
            if not (exact or resized) and any(not isclose(left, right, rel_tol=1e-2) for left, right in pairs):
                return number, "losses"
    return None


def _epochs(reference: History) -> list[int]:
    """Return the first step of each epoch of the undisturbed run."""
    ends = {place["step"] for place in reference.attempts[0].occurrences if place["phase"] == "epoch-end"}
    return sorted({0} | {step for step in ends if step < len(reference.steps)})


def _of_samples(reference: History, history: History, attempt: Attempt, number: int) -> str:
    """Return words for a step that has other samples than in the undisturbed run."""
    base, ours = attempt.base or 0, history.samples([number])
    if attempt.world != reference.world:
        return (
            f"samples were lost or repeated when the number of processes changed from {reference.world} to"
            f" {attempt.world}: a position that is counted in batches of a process has no meaning for another number;"
            f" step {number} has other samples"
        )
    starts = _epochs(reference)
    began = max(start for start in starts if start <= number)
    same = next((place for place in range(len(reference.steps)) if reference.samples([place]) == ours), None)
    at = f"step {number}, the first after the resume at step {base}," if number == base else f"step {number}"
    if attempt.streams and (same is None or same < number):
        return f"a stream was begun anew: {at} has samples from its beginning"
    if same is not None and same > number:
        if same in starts:
            return f"an epoch was skipped: {at} has the samples with which the undisturbed run begins its next epoch"
        return f"samples were skipped: {at} has those of step {same}"
    if same is not None and same == began:
        return f"the sampler was reset: {at} has the samples with which its epoch began"
    if same == 0:
        return f"an epoch was counted from 0: {at} has the samples of the first epoch (set_epoch, range(epochs))"
    if same is not None:
        return f"the position in the data was not resumed: {at} has those of step {same}"
    ends = [start for start in starts if start > number]
    epoch = range(began, ends[0] if ends else len(reference.steps))
    if not ours - reference.samples(epoch):
        between = {place["phase"] for place in reference.attempts[0].occurrences if place["step"] == number}
        if number == base == began and "evaluation" in between:
            return (
                f"the order of samples was drawn anew: {at} begins an epoch, and the evaluation before it, which draws"
                " random numbers, was not made again; save after the evaluation, or give its loader a generator"
            )
        return (
            f"the order of samples was drawn anew: {at} has samples of its epoch in another order; a seed was drawn or"
            " set after the resume, or the position in the epoch was not saved"
        )
    return f"unknown: {at} has other samples"


def _of_rates(reference: History, history: History, attempt: Attempt, number: int) -> str:
    """Return words for a step that has another learning rate than in the undisturbed run."""
    base, rates = attempt.base or 0, history.steps[number][1].rates
    expected = reference.steps[number][1].rates
    at = f"the learning rate of step {number} is {rates[0]:g}, and {expected[0]:g} without faults"
    if rates == reference.steps[number - base][1].rates:
        return f"a scheduler was not registered: it begins anew after the resume; {at}"
    later = [place for place in range(number + 1, len(reference.steps)) if reference.steps[place][1].rates == rates]
    ahead = f"it is {later[0] - number} steps ahead" if later else "it stands where the undisturbed run never did"
    return f"a scheduler was stepped twice: {ahead} after the resume; {at}"


def _of_length(reference: History, history: History) -> str | None:
    """Return words for a run that has more steps, or fewer, than the undisturbed run."""
    more = len(history.steps) - len(reference.steps)
    if more > 0:
        return f"an epoch was counted from 0: the run made {more} steps more than the undisturbed run"
    if more < 0 and history.ended:
        return f"an epoch was skipped: the run made {-more} steps fewer than the undisturbed run"
    return None


def _torn(reference: History, history: History, attempt: Attempt) -> str | None:
    """Return words for an attempt that begins with a state that the job never had."""
    base = attempt.base
    if base is None:
        ranks = [rank[attempt.name].states.get(WEIGHTS) for rank in history.ranks if attempt.name in rank]
        if len(set(ranks)) > len({step.states.get(WEIGHTS) for step in reference.at(0)}):
            return "a save or a load took place on the main process only: the others have other weights"
        return "a checkpoint was committed half: the weights after the resume are those of no step"
    found = attempt.states.get("optimizer state")
    places = [place for place, (_, one) in enumerate(reference.steps) if one.states["optimizer state"] == found]
    if places and places[0] and base not in places:
        return f"a checkpoint was committed half: weights of step {base}, and an optimizer state of step {places[0]}"
    return None


def _of_states(reference: History, attempt: Attempt) -> str | None:
    """Return words for the first state that differs at the start of an attempt."""
    base = attempt.base
    if base is None or base >= len(reference.steps):
        return _module(reference, attempt)
    expected = reference.steps[base][1].states
    differing = {name for name, value in expected.items() if attempt.states.get(name) != value}
    at = f"after the resume at step {base}"
    if "optimizer state" in differing:
        return f"the optimizer state was not saved or not loaded: it differs {at}"
    for name in sorted(differing):
        if name.startswith("the module "):
            return f"{name} was not saved: it differs {at}; register it (accelerator.register_for_checkpointing)"
        if name.startswith("the scheduler "):
            return f"{name} was not registered or was stepped twice: it differs {at}"
    for name, words in (
        ("buffers", "the buffers of the model were not saved"),
        ("loss scale", "the loss scale was forgotten"),
    ):
        if name in differing:
            return f"{words}: they differ {at}" if name == "buffers" else f"{words}: it differs {at}"
    drawn = [name for name in sorted(differing) if name.startswith("random numbers")]
    if drawn:
        return (
            f"{' and '.join(drawn)} differ {at}: a number or a seed was drawn after the resume, or they were not saved"
        )
    return None


def _module(reference: History, attempt: Attempt) -> str | None:
    ended = reference.attempts[-1].ended or {}
    names = [
        name for name, value in ended.items() if name.startswith("the module ") and attempt.states.get(name) != value
    ]
    return f"{names[0]} was not saved: it differs at the end" if names else None
