"""Read a run as its processes have logged it: the history that was committed, and what each fault cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from accel_chaos.step_log import Attempt, Step, committed, read_attempts


@dataclass
class History:
    """A run, by the logs of its processes.

    Args:
        folder: Folder of the run.
    """

    folder: Path
    attempts: list[Attempt] = field(init=False)

    def __post_init__(self) -> None:
        self.attempts = read_attempts(self.folder / "attempts")

    @cached_property
    def steps(self) -> list[tuple[Attempt, Step]]:
        """The steps of rank 0 that were committed in the end, each with its attempt."""
        return committed(self.attempts)

    @property
    def ended(self) -> bool:
        """True if the script has come to its end."""
        return bool(self.attempts) and self.attempts[-1].ended is not None

    @property
    def world(self) -> int:
        """The largest number of processes."""
        return max((attempt.world for attempt in self.attempts), default=0)

    @cached_property
    def ranks(self) -> list[dict[str, Attempt]]:
        """The attempts of each rank, by their names."""
        found = [read_attempts(self.folder / "attempts", rank) for rank in range(self.world)]
        return [{attempt.name: attempt for attempt in attempts} for attempts in found]

    def at(self, number: int) -> list[Step]:
        """Return a committed step as each of its ranks has made it."""
        attempt, step = self.steps[number]
        index = next(place for place, made in enumerate(attempt.steps) if made is step)
        own = [rank[attempt.name].steps for rank in self.ranks[: attempt.world] if attempt.name in rank]
        return [steps[index] for steps in own if index < len(steps)]

    def samples(self, numbers: Iterable[int]) -> Counter[str]:
        """Return how often each sample was trained on in committed steps, over all ranks."""
        return Counter(sample for number in numbers for step in self.at(number) for sample in step.samples)

    @cached_property
    def consumed(self) -> Counter[str]:
        """How often each sample was trained on in the committed history."""
        return self.samples(range(len(self.steps)))


def costs(history: History, raised: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each fault with the seconds to the next step and the steps that were repeated.

    Args:
        history: The run with faults.
        raised: The faults, as their marks tell.
    """
    told = []
    for fault in raised:
        place = {name: fault[name] for name in ("number", "kind", "phase", "step", "rank")}
        after = [attempt for attempt in history.attempts if attempt.name > fault["attempt"]]
        own = [attempt for attempt in history.attempts if attempt.name == fault["attempt"]]
        # the attempt goes on if the fault has not ended it: the steps of the rank that had it tell
        rank = history.ranks[fault["rank"]] if fault["rank"] < history.world else {}
        stayed = [rank[attempt.name] for attempt in own if attempt.name in rank]
        later = [step.time for attempt in [*stayed, *after] for step in attempt.steps if step.time > fault["time"]]
        if later and after and fault["kind"] != "SIGSTOP":
            later = [step.time for attempt in after for step in attempt.steps]
        repeated: int | None = 0
        if own and after:
            made = len(committed(history.attempts[: history.attempts.index(own[0]) + 1]))
            repeated = None if after[0].base is None else max(0, made - after[0].base)
            others = [one for one in raised if one["attempt"] == fault["attempt"]]
            if others[-1] is not fault:  # a later fault has ended the attempt
                repeated = 0
                later = later or []
        seconds = round(min(later) - fault["time"], 2) if later else None
        told.append({**place, "seconds_to_next_step": seconds, "steps_repeated": repeated})
    return told
