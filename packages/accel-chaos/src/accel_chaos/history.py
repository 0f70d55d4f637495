"""Read what the processes of a run have logged: the history that was committed, and what each fault cost."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

#: the weights of models, the states of optimizers and the loss scale among the states of a step
WEIGHTS, MOMENTS, SCALE = "weights", "optimizer state", "the loss scale"


@dataclass
class Step:
    """An optimizer step of a process.

    Args:
        time: When it was over.
        samples: A digest of each sample that models were trained on.
        losses: The losses that were differentiated.
        rates: The learning rates that the optimizer used.
        states: A digest of each state before the step, by the name of the state.
        after: A digest of the weights after the step.
        noted: True if the script notes SIGTERM by a handler.

    Units:
        Seconds of the monotonic clock.
    """

    time: float
    samples: list[str]
    losses: list[float]
    rates: list[float]
    states: dict[str, str]
    after: str
    noted: bool = False


@dataclass
class Attempt:
    """The steps of a process between a start and its end.

    Args:
        name: Name of the attempt, which sorts by time.
        world: Number of processes.
        base: Number of steps that the job had made, as far as the weights tell; None if the weights are new.
        states: A digest of each state at the first step.
        streams: True if a prepared loader reads a stream.
        steps: The steps.
        ended: The states at the end of the script, or None if the process did not reach it.
        occurrences: The phases that the process entered.
    """

    name: str
    world: int
    base: int | None
    states: dict[str, str]
    streams: bool = False
    steps: list[Step] = field(default_factory=list)
    ended: dict[str, str] | None = None
    occurrences: list[dict[str, Any]] = field(default_factory=list)


def read_attempts(folder: Path, rank: int = 0) -> list[Attempt]:
    """Return the attempts of a rank that came to a step, in order.

    Args:
        folder: Folder of the run.
        rank: The rank.
    """
    attempts = []
    for path in sorted(folder.glob(f"*/rank-{rank}.jsonl")):
        told: dict[str, list[dict[str, Any]]] = {"begin": [], "step": [], "end": [], "occurrence": []}
        for text in path.read_text().split("\n")[:-1]:  # the process may have been killed in its last line
            line = json.loads(text)
            told[line.pop("event")].append(line)
        for begin in told["begin"]:
            own = Attempt(path.parent.name, **begin, occurrences=told["occurrence"])
            own.steps = [Step(**line) for line in told["step"]]
            own.ended = told["end"][0]["states"] if told["end"] else None
            attempts.append(own)
    return attempts


def committed(attempts: Iterable[Attempt]) -> list[tuple[Attempt, int]]:
    """Return the steps of the history that was committed in the end, each as its attempt and its index there.

    Later attempts replace the steps that they repeat.
    """
    history: list[tuple[Attempt, int]] = []
    for attempt in attempts:
        del history[len(history) if attempt.base is None else attempt.base :]
        history += [(attempt, index) for index in range(len(attempt.steps))]
    return history


def find_base(states: dict[str, str], *runs: list[Attempt]) -> int | None:
    """Return after how many steps the job had such weights, or None if it never had.

    Of several steps with equal weights, as a step with a learning rate of 0 leaves them, one counts that has the same
    optimizer state too.

    Args:
        states: The states at the start of an attempt.
        runs: The attempts of several runs, in which to look in turn.
    """
    for run in runs:
        steps = [attempt.steps[index] for attempt, index in committed(run)]
        known = [*(attempt.states[WEIGHTS] for attempt in run[:1]), *(step.after for step in steps)]
        equal = [number for number, weights in enumerate(known) if weights == states[WEIGHTS]]
        moments = [*(step.states[MOMENTS] for step in steps), ""]
        same = [number for number in equal if moments[number] == states[MOMENTS]]
        if equal:
            return max(same or equal)
    return None


@dataclass
class History:
    """A run, by the logs of its processes.

    Args:
        folder: Folder of the run.
    """

    folder: Path

    @cached_property
    def ranks(self) -> list[dict[str, Attempt]]:
        """The attempts of each rank, by their names."""
        ranks: list[dict[str, Attempt]] = []
        while attempts := read_attempts(self.folder, len(ranks)):
            ranks.append({attempt.name: attempt for attempt in attempts})
        return ranks

    @cached_property
    def attempts(self) -> list[Attempt]:
        """The attempts of rank 0."""
        return list(self.ranks[0].values()) if self.ranks else []

    @cached_property
    def steps(self) -> list[list[Step]]:
        """The steps that were committed in the end, each as all of its ranks have made it."""
        return [
            [rank[attempt.name].steps[index] for rank in self.ranks if len(_steps(rank, attempt)) > index]
            for attempt, index in committed(self.attempts)
        ]

    @property
    def ended(self) -> dict[str, str] | None:
        """The states at the end of the script, or None if it was not reached."""
        return self.attempts[-1].ended if self.attempts else None

    def resized(self) -> bool:
        """Return whether the number of processes has changed."""
        return len({attempt.world for attempt in self.attempts}) > 1

    def samples(self, numbers: Iterable[int] | None = None) -> Counter[str]:
        """Return how often each sample was trained on in some committed steps, or in all."""
        chosen = range(len(self.steps)) if numbers is None else numbers
        return Counter(sample for number in chosen for step in self.steps[number] for sample in step.samples)


def _steps(rank: dict[str, Attempt], attempt: Attempt) -> list[Step]:
    return rank[attempt.name].steps if attempt.name in rank else []


def add_costs(history: History, raised: list[dict[str, Any]]) -> None:
    """Add the seconds to the next step and the steps that were repeated to each fault.

    Args:
        history: The run with faults.
        raised: The faults, as their marks tell.
    """
    for fault in raised:
        until = [attempt for attempt in history.attempts if attempt.name <= fault["attempt"]]
        after = history.attempts[len(until) :]
        own = [attempt for attempt in until if attempt.name == fault["attempt"]]
        # an attempt is ended by its last fault, unless it has no successor
        ended = after and [one for one in raised if one["attempt"] == fault["attempt"]][-1] is fault
        steps = [step for attempt in (after if ended else own + after) for step in attempt.steps]
        seconds = min((step.time - fault["time"] for step in steps if step.time > fault["time"]), default=None)
        repeated: int | None = 0
        if ended and own:
            repeated = None if after[0].base is None else max(0, len(committed(until)) - after[0].base)
        fault |= {"seconds_to_next_step": seconds and round(seconds, 2), "steps_repeated": repeated}
