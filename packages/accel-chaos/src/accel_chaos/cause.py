"""Name the likely cause of a run that did not recover, by the first state that differs."""

from __future__ import annotations

import re
from itertools import pairwise
from math import isclose
from typing import Any

from accel_chaos.history import MOMENTS, SCALE, WEIGHTS, Attempt, History, committed

#: the last line of a traceback
_ERROR = re.compile(r"^(?:\[\S+\] ?)?((?:\w+\.)*\w*(?:Error|Exception|Exit)\b.*)$", re.MULTILINE)
UNKNOWN = "unknown: nothing that was looked at differs before"


def find_cause(
    reference: History,
    history: History,
    raised: list[dict[str, Any]],
    output: str,
    *,
    well: bool,
    exact: bool,
) -> str:
    """Return the likely cause of a run that did not recover, or "" if nothing is wrong.

    Args:
        reference: The undisturbed run.
        history: The run with faults.
        raised: The faults, with what each has cost.
        output: What was printed.
        well: Whether samples and final weights are those of the undisturbed run.
        exact: Whether all numbers have to be the same, and not only but for rounding.
    """
    starts = _epochs(reference)
    if words := _unheard(starts, history, raised):
        return words
    if history.ended is None:
        errors = [error for error in _ERROR.findall(output) if "accel_chaos" not in error]
        said = f": {errors[-1][:200]}" if errors else ""
        torn = raised and raised[-1]["phase"] in ("save", "rename")
        if torn and said:
            return f"a checkpoint was committed half: a save was cut short, and what it left cannot be loaded{said}"
        return f"the script does not end, without a further fault{said}"
    steps = list(zip(history.steps, reference.steps, strict=False))
    scale = any(ours[0].states.get(SCALE) != theirs[0].states.get(SCALE) for ours, theirs in steps)
    if well and not scale:
        return ""
    for attempt in history.attempts:
        if words := _torn(reference, history, attempt):
            return words
    made = committed(history.attempts)
    for number, (ours, theirs) in enumerate(steps):
        attempt, step = made[number][0], ours[0]
        if history.samples([number]) != reference.samples([number]):
            words = _of_samples(reference, history, starts, attempt, number)
        elif step.rates != theirs[0].rates:
            words = _of_rates(reference, attempt, number, step.rates)
        elif any(
            one.losses != other.losses if exact else not _near(one.losses, other.losses)
            for one, other in zip(ours, theirs, strict=False)
        ):
            words = _of_states(reference, attempt)
        else:
            continue
        if attempt is history.attempts[0] and (not raised or step.time < raised[0]["time"]):
            return f"the script is not deterministic: step {number} differs before the first fault; seed what is random"
        return words
    more = len(history.steps) - len(reference.steps)
    if scale:
        return "the loss scale was forgotten: it is not in what is saved and loaded"
    if more and not history.resized():
        name = "counted from 0" if more > 0 else "skipped"
        return (
            f"an epoch was {name}: the run made {abs(more)} steps {'more' if more > 0 else 'fewer'} than without faults"
        )
    return _of_states(reference, history.attempts[-1])


def _near(ours: list[float], theirs: list[float]) -> bool:
    return all(isclose(one, other, rel_tol=1e-2) for one, other in zip(ours, theirs, strict=False))


def _epochs(reference: History) -> list[int]:
    """Return the first step of each epoch of the undisturbed run."""
    return sorted({0} | {one["step"] for one in reference.attempts[0].occurrences if one["phase"] == "epoch-end"})


def _unheard(starts: list[int], history: History, raised: list[dict[str, Any]]) -> str:
    """Return words for a preemption that the script notes and does not act on."""
    attempts = {attempt.name: attempt for attempt in history.attempts if attempt.steps}
    last = {fault["attempt"]: fault["number"] for fault in raised}
    for fault in raised:
        own = attempts.get(fault["attempt"])
        if fault["kind"] not in ("SIGTERM", "resize") or own is None or last[own.name] != fault["number"]:
            continue
        # a script may ask at the end of an epoch
        made = (own.base or 0) + len(own.steps)
        passed = own.ended is not None and any(fault["step"] < start < made for start in starts)
        if own.steps[-1].noted and (passed or fault["steps_repeated"]):
            return (
                f"a save that a signal asks for never came: the script notes SIGTERM, and lost steps or went on after"
                f" fault {fault['number']}; ask accelerator.stop_requested() after each step, and call save_and_stop()"
            )
    return ""


def _torn(reference: History, history: History, attempt: Attempt) -> str:
    """Return words for an attempt that begins with a state that the job never had."""
    if attempt.base is None:
        ranks = {rank[attempt.name].states[WEIGHTS] for rank in history.ranks if attempt.name in rank}
        if len(ranks) > 1:
            return "a save or a load took place on the main process only: other processes have other weights"
        return "a checkpoint was committed half: the weights after the resume are those of no step"
    places = [place for place, one in enumerate(reference.steps) if one[0].states[MOMENTS] == attempt.states[MOMENTS]]
    if places and places[0] and attempt.base not in places:
        return f"a checkpoint was committed half: weights of step {attempt.base}, and an {MOMENTS} of step {places[0]}"
    return ""


def _of_samples(reference: History, history: History, starts: list[int], attempt: Attempt, number: int) -> str:
    """Return words for a step that has other samples than in the undisturbed run."""
    ours = history.samples([number])
    same = next((place for place in range(len(reference.steps)) if reference.samples([place]) == ours), None)
    began = max(start for start in starts if start <= number)
    following = next((second for first, second in pairwise([*starts, len(reference.steps)]) if first == began), number)
    words = next(
        words
        for holds, words in (
            (
                history.resized(),
                "samples were lost or repeated when the number of processes changed: a position that is counted in"
                " batches of a process has no meaning for another number",
            ),
            (attempt.streams and (same or 0) < number, "a stream was begun anew, or was not put where it was"),
            (same in starts and (same or 0) > number, "an epoch was skipped"),
            (same == began, "the sampler was reset: these are the samples with which the epoch began"),
            (same == 0, "an epoch was counted from 0: these are the samples of the first (set_epoch, range(epochs))"),
            (same is not None, f"the position in the data was not resumed: these are the samples of step {same}"),
            (
                not ours - reference.samples(range(began, following)),
                "the order of samples was drawn anew: a seed was drawn or set after the resume, or the position was"
                " not saved, or an evaluation that draws random numbers was not made again before this epoch",
            ),
            (True, "unknown: the samples are others"),
        )
        if holds
    )
    return f"{words}; step {number} is the first that differs"


def _of_rates(reference: History, attempt: Attempt, number: int, rates: list[float]) -> str:
    """Return words for a step that has another learning rate than in the undisturbed run."""
    known = [step[0].rates for step in reference.steps]
    anew = rates == known[number - (attempt.base or 0)]
    words = "was not registered: it begins anew after the resume" if anew else "was stepped twice after the resume"
    off = f"the learning rate of step {number} is {rates[0]:g}, and {known[number][0]:g} without faults"
    return f"a scheduler {words}; {off}"


def _of_states(reference: History, attempt: Attempt) -> str:
    """Return words for the first state that differs at the start of an attempt."""
    ends = (reference.ended or {}, attempt.ended or {})
    within = attempt.base is not None and attempt.base < len(reference.steps)
    expected, found = (reference.steps[attempt.base or 0][0].states, attempt.states) if within else ends
    differing = [name for name, value in expected.items() if found.get(name) != value]
    drawn = [name for name in differing if name.startswith("random numbers")]
    saved = [name for name in differing if name not in (*drawn, WEIGHTS)]
    at = f"differ after the resume at step {attempt.base}"
    if saved:
        return f"not saved or not loaded: {', '.join(saved)} {at}; prepare it, or register_for_checkpointing"
    if drawn:
        return f"{' and '.join(drawn)} {at}: a number or a seed was drawn after the resume, or they were not saved"
    return UNKNOWN
