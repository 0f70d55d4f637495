"""Write what a process does at each step, a line at a time, and read it after the process was killed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

#: the weights of models among the states of a step
WEIGHTS = "weights"


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
    """What a process did between a start and its end.

    Args:
        name: Name of the attempt, which sorts by time.
        world: Number of processes.
        base: Number of steps that the job had made, as far as the weights tell; None if the weights are new.
        states: A digest of each state at the first step.
        streams: True if a prepared loader reads a stream.
        steps: The steps.
        ended: The states at the end of the script, or None if the process did not reach it.
        places: The folders of checkpoints, and the steps at which they were saved.
        occurrences: The phases that the process entered.
    """

    name: str
    world: int
    base: int | None
    states: dict[str, str]
    streams: bool = False
    steps: list[Step] = field(default_factory=list)
    ended: dict[str, str] | None = None
    places: dict[str, int] = field(default_factory=dict)
    occurrences: list[dict[str, Any]] = field(default_factory=list)


class StepLog:
    """The file to which a process appends what it does.

    Args:
        folder: Folder of all attempts of a run.
        attempt: Name of this attempt.
        rank: Rank of this process.
    """

    def __init__(self, folder: Path, attempt: str, rank: int) -> None:
        path = folder / attempt / f"rank-{rank}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        # a line is one call of write, so that a kill leaves it whole or absent; the limit on files is not met by it
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, event: str, **values: Any) -> None:
        """Append a line."""
        os.write(self._descriptor, (json.dumps({"event": event, **values}) + "\n").encode())

    def step(self, step: Step) -> None:
        """Append a step."""
        self.write("step", **asdict(step))


def read_attempts(folder: Path, rank: int = 0) -> list[Attempt]:
    """Return the attempts of a rank that came to a step, in order.

    Args:
        folder: Folder of all attempts of a run.
        rank: The rank.
    """
    attempts = []
    for path in sorted(folder.glob(f"*/rank-{rank}.jsonl")):
        attempt: Attempt | None = None
        occurrences: list[dict[str, Any]] = []
        for line in _lines(path):
            event = line.pop("event")
            if event == "begin":
                attempt = Attempt(path.parent.name, **line)
            elif event == "occurrence":
                occurrences.append(line)
            elif attempt is not None and event == "step":
                attempt.steps.append(Step(**line))
            elif attempt is not None and event == "saved":
                attempt.places[line["folder"]] = line["step"]
            elif attempt is not None and event == "end":
                attempt.ended = line["states"]
        if attempt is not None:
            attempt.occurrences = occurrences
            attempts.append(attempt)
    return attempts


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(text)
        except ValueError:
            return  # the process was killed in this line


def committed(attempts: list[Attempt]) -> list[tuple[Attempt, Step]]:
    """Return the steps of the history that was committed in the end: later attempts replace steps that they repeat."""
    history: list[tuple[Attempt, Step]] = []
    for attempt in attempts:
        del history[attempt.base if attempt.base is not None else len(history) :]
        history += [(attempt, step) for step in attempt.steps]
    return history


def find_base(weights: str, undisturbed: list[Attempt], earlier: list[Attempt]) -> int | None:
    """Return after how many steps the job had such weights, or None if it never had.

    Args:
        weights: Digest of the weights at the start of an attempt.
        undisturbed: The attempts of the undisturbed run.
        earlier: The earlier attempts of this run.
    """
    for run in (committed(earlier), committed(undisturbed)):
        for number in range(len(run), 0, -1):
            if run[number - 1][1].after == weights:
                return number
        if run and run[0][1].states.get(WEIGHTS) == weights:
            return 0
    return None
