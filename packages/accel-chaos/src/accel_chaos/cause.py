"""Name the likely cause of a run that did not recover, by the first state that differs."""

from __future__ import annotations

from collections import Counter
from typing import Any

from accel_chaos.history import DRAWN, MOMENTS, RATES, SCALE, WEIGHTS, Attempt, History, Step


def find_cause(
    wanted: Counter[str],
    expected: History,
    history: History,
    faults: list[dict[str, Any]],
    *,
    well: bool,
    exact: bool,
) -> str:
    """Return the likely cause of a run that did not recover, or "" if nothing is wrong.

    Args:
        wanted: How often each sample is to be trained on.
        expected: The undisturbed run, or one without faults that was resized as the run with faults.
        history: The run with faults.
        faults: The faults, with what each has cost.
        well: Whether samples and final weights are as expected.
        exact: Whether all numbers have to be the same, and not only but for rounding.
    """
    if words := _unheard(expected, history, faults):
        return words
    if history.ended is None:
        if faults and faults[-1]["phase"] in ("save", "rename"):
            return "a checkpoint was committed half: a save was cut short, and the script fails with what it left"
        return "the script fails, or stops, without a further fault"
    if well and expected.ended and history.ended[SCALE] == expected.ended[SCALE]:
        return ""
    if expected.samples() != wanted:
        return (
            "samples were lost or repeated when the number of processes changed: a position that is counted in"
            " batches of a process has no meaning for another number"
        )
    for attempt in history.attempts:
        if words := _torn(expected, history, attempt):
            return words
    for ours, theirs in zip(history.steps, expected.steps, strict=False):
        attempt = next(one for one in history.attempts if one.attempt == ours.attempt)
        if Counter(ours.samples) != Counter(theirs.samples):
            words = _of_samples(expected, ours)
        elif ours.states[RATES] != theirs.states[RATES]:
            words = _of_rates(expected, attempt, ours)
        elif ours.states[SCALE] != theirs.states[SCALE]:
            words = "the loss scale was forgotten: it is not in what is saved and loaded"
        elif exact and ours.after != theirs.after:
            words = _of_states(expected, attempt)
        else:
            continue
        if all(ours.time < fault["time"] for fault in faults):
            words = "the script is not deterministic: seed what is random"
        return f"{words}; step {ours.number} is the first that differs"
    if len(history.steps) != len(expected.steps):
        return "an epoch was counted from 0, or skipped: the run made another number of steps"
    return _of_states(expected, history.attempts[-1])


def _unheard(expected: History, history: History, faults: list[dict[str, Any]]) -> str:
    """Return words for a preemption that the script notes and does not act on."""
    made = {attempt.attempt: attempt.made for attempt in history.attempts if attempt.ended}
    steps = [fault["step"] for fault in faults]
    for fault in faults:
        if (
            fault["noted"]
            # another fault at the same step may have come before the save
            and steps.count(fault["step"]) == 1
            and (
                fault["steps_repeated"]
                # a script may ask at the end of an epoch
                or any(fault["step"] < start < made.get(fault["attempt"], 0) for start in expected.starts)
            )
        ):
            return (
                "a save that a signal asks for never came: the script notes SIGTERM, and lost steps or went on; ask"
                " accelerator.stop_requested() after each step, and call save_and_stop()"
            )
    return ""


def _torn(expected: History, history: History, attempt: Attempt) -> str:
    """Return words for an attempt that begins with a state that the job never had."""
    weights = {one.states[WEIGHTS] for one in history.begun if one.attempt == attempt.attempt}
    if len(weights) > 1:
        return "a save or a load took place on the main process only: other processes have other weights"
    if not attempt.known:
        return "a checkpoint was committed half: the weights after the resume are those of no step"
    places = [one.number for one in expected.steps if one.states[MOMENTS] == attempt.states[MOMENTS]]
    if places and places[0] and attempt.base not in places:
        return "a checkpoint was committed half: the optimizer state is that of another step than the weights"
    return ""


def _of_samples(expected: History, step: Step) -> str:
    """Return words for a step that has other samples than expected."""
    ours = Counter(step.samples)
    same = next((one.number for one in expected.steps if Counter(one.samples) == ours), None)
    if same is None:
        return (
            "the samples are those of no step: their order was drawn anew (a seed was drawn or set after the resume, or"
            " the position was not saved, or an evaluation that draws random numbers was not made again before this"
            " epoch), or they are made anew at random"
        )
    if same in expected.starts and same > step.number:
        return "an epoch was skipped"
    if same == max(start for start in expected.starts if start <= step.number):
        return "the sampler was reset, or a stream was begun anew: these are the samples with which the epoch began"
    if same == 0:
        return "an epoch was counted from 0: these are the samples of the first (set_epoch, range(epochs))"
    return f"the position in the data was not resumed: these are the samples of step {same}"


def _of_rates(expected: History, attempt: Attempt, step: Step) -> str:
    """Return words for the scheduler of a step that has other learning rates than expected."""
    first = expected.steps[0].states
    # most schedules go on from the rate that they find, which the optimizer has saved
    anew = [name for name in first if name.startswith("the scheduler") and attempt.states.get(name) == first[name]]
    if attempt.base and (anew or step.states[RATES] == expected.steps[step.number - attempt.base].states[RATES]):
        return "a scheduler was not registered: it begins anew after the resume"
    return "a scheduler was stepped twice after the resume"


def _of_states(expected: History, attempt: Attempt) -> str:
    """Return words for the first state that differs at the start of an attempt."""
    known = [*(step.states for step in expected.steps), expected.ended or {}]
    # a run that went on for too long has no such step
    states = known[min(attempt.base, len(expected.steps))]
    differing = [name for name in states if name != WEIGHTS and attempt.states.get(name) != states[name]]
    if saved := [name for name in differing if name != DRAWN]:
        return f"not saved or not loaded: {', '.join(saved)}; prepare it, or register_for_checkpointing"
    if differing:
        return "random numbers differ: a number or a seed was drawn after the resume, or they were not saved"
    return "unknown: nothing that was looked at differs before"
