"""Read what the processes of a run have logged: the steps of each attempt, and the history that was committed."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from accel_chaos.faults import Fault

#: name of the folder of the undisturbed run, beside those of others
UNDISTURBED = "undisturbed"
#: names of states
WEIGHTS, MOMENTS, RATES = "weights", "optimizer state", "learning rates"
SCALE = "the loss scale"
DRAWN = "random numbers"


@dataclass
class Step:
    """An optimizer step of a process.

    Args:
        attempt: Name of the attempt.
        rank: Rank of the process.
        number: Number of steps that the job had made before.
        time: When it was over.
        samples: A digest of each sample that models were trained on.
        states: A digest of each state before the step, by the name of the state.
        after: A digest of the weights after the step.
        world: Number of processes.

    Units:
        Seconds of the monotonic clock.
    """

    attempt: str = ""
    rank: int = 0
    number: int = 0
    time: float = 0.0
    samples: list[str] = field(default_factory=list)
    states: dict[str, str] = field(default_factory=dict)
    after: str = ""
    world: int = 1


@dataclass
class Attempt:
    """The work of a process between a start of the job and its end.

    Args:
        attempt: Its name, which sorts by time.
        rank: Rank of the process.
        base: Number of steps that the job had made.
        known: True if the job ever had the weights at the first step; otherwise `base` counts all steps until then.
        states: A digest of each state at the first step.
        steps: The steps.
        ended: The states at the end of the script, or None if it was not reached.
    """

    attempt: str
    rank: int
    base: int
    known: bool
    states: dict[str, str]
    steps: list[Step] = field(default_factory=list)
    ended: dict[str, str] | None = None

    @property
    def made(self) -> int:
        """The number of steps that the job had made at the end."""
        return self.base + len(self.steps)


class History:
    """A run, as its processes have logged it.

    Args:
        folder: Folder of the run.
        ranks: Ranks to read. Default: all.

    Attributes:
        places: The phases that processes entered.
        begun: The attempts of all ranks.
        attempts: Those of rank 0 that made a step or came to the end, in order.
        steps: The steps of rank 0 that were committed in the end: later attempts replace what they repeat.
        ended: The states at the end of the script, or None if it was not reached.
        resizes: How many of the committed steps were made each time before the number of processes changed.
    """

    def __init__(self, folder: Path, ranks: str = "*") -> None:
        self.places: list[Fault] = []
        self.begun: list[Attempt] = []
        self.steps: list[Step] = []
        for log in sorted(folder.glob(f"*-{ranks}.jsonl")):
            for text in log.read_text().split("\n")[:-1]:  # the process may have been killed in its last line
                event, values = json.loads(text)
                if event == "place":
                    self.places.append(Fault(**values))
                elif event == "begin":
                    self.begun.append(Attempt(**values))
                elif event == "step":
                    self.begun[-1].steps.append(Step(**values))
                else:
                    self.begun[-1].ended = values["states"]
        self.attempts = [one for one in self.begun if one.rank == 0 and (one.steps or one.ended)]
        for attempt in self.attempts:
            self.steps[attempt.base :] = attempt.steps
        self.ended = self.attempts[-1].ended if self.attempts else None
        self.resizes = [step.number for before, step in pairwise(self.steps) if before.world != step.world]

    def samples(self) -> Counter[str]:
        """Return how often all ranks trained on each sample, in the committed steps."""
        made = {(step.attempt, step.number) for step in self.steps}
        every = [step for attempt in self.begun for step in attempt.steps if (step.attempt, step.number) in made]
        return Counter(sample for step in every for sample in step.samples)

    @property
    def starts(self) -> list[int]:
        """The first step of each epoch."""
        return sorted({0, *(place.step for place in self.places if place.phase == "epoch-end")})

    def find(self, states: dict[str, str]) -> int:
        """Return after how many steps the job had such weights, or -1 if it never had. A job without steps had them.

        Of several steps with equal weights, as a step with a learning rate of 0 leaves them, one counts that has the
        same optimizer state too.
        """
        known = [step.states for step in self.steps] + [{WEIGHTS: step.after} for step in self.steps[-1:]]
        equal = [number for number, one in enumerate(known) if one[WEIGHTS] == states[WEIGHTS]]
        same = [number for number in equal if known[number].get(MOMENTS) == states[MOMENTS]]
        return max(same or equal or [-1 if known else 0])


def add_costs(attempts: list[Attempt], faults: list[dict[str, Any]]) -> None:
    """Add the seconds to the next step and the steps that were repeated to each fault.

    Args:
        attempts: The attempts of the run.
        faults: The faults that were raised.
    """
    newest = {fault["attempt"]: fault for fault in faults}
    for fault in faults:
        own = [attempt.made for attempt in attempts if attempt.attempt == fault["attempt"]]
        # an attempt is ended by its last fault, unless it has no successor
        ended = newest[fault["attempt"]] is fault
        after = [attempt for attempt in attempts if ended and attempt.attempt > fault["attempt"]]
        seconds = [round(step.time - fault["time"], 2) for attempt in after or attempts for step in attempt.steps]
        fault["seconds_to_next_step"] = min((wait for wait in seconds if wait > 0), default=None)
        fault["steps_repeated"] = max(0, own[0] - after[0].base) if own and after else 0
