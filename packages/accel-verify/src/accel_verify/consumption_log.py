"""Check by the log that loaders write (`accel_data.ConsumptionLog`) that no sample was lost or repeated."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class ConsumptionLogError(ValueError):
    """An error of a consumption log that shows lost or repeated samples, or cannot prove that there are none."""


@dataclass(slots=True)
class ServedRange:
    """The items that a loader served in an epoch, once each.

    Args:
        loader: Name of the loader in the log.
        epoch: Number of the epoch, from 0.
        upto: Position after the last item, in the order of the epoch.
        unit: What is counted: "samples" or "batches".
        complete: True if the epoch was served to its end. Otherwise the script left it, or it still runs.
        pieces: Number of runs that served it: one more than the number of resumes.
        first: Position of the first item.
    """

    loader: str
    epoch: int
    upto: int
    unit: str
    complete: bool
    pieces: int
    first: int = 0
    #: the line at which it began, whether it has ended, and the digests at the positions that lines name
    _start: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    _ended: bool = field(default=False, init=False, repr=False, compare=False)
    _digests: dict[int, Any] = field(default_factory=dict, init=False, repr=False, compare=False)


def verify(path: str | Path) -> list[ServedRange]:
    """Check by a consumption log that each epoch served each item once, whatever crashed or was resized.

    Items after the state from which a later line resumes do not count: the resumed run serves them again.

    Args:
        path: The file that `accel_data.ConsumptionLog` wrote.

    Returns:
        The epochs of each loader.

    Raises:
        ConsumptionLogError: A line breaks the proof; the message lists all such lines.
        FileNotFoundError: There is no file.
    """
    if not Path(path).exists():
        raise FileNotFoundError(
            f"there is no consumption log {path}: none was asked for (consumption_log=...), no pass has begun, or all"
            " loaders read streams that are sharded at their source, which write none"
        )
    problems: list[str] = []
    loaders: dict[str, list[ServedRange]] = {}
    for number, text in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
        try:
            line = json.loads(text)
            note = _start if line["event"] == "start" else _go_on
            if (problem := note(line, loaders.setdefault(line["loader"], []))) is not None:
                problem = f"epoch {line['epoch']} {problem}"
        except (ValueError, KeyError, TypeError) as error:
            problem = f"this is no line of a consumption log ({type(error).__name__}: {error})"
        if problem:
            problems.append(f"line {number}: {problem}")
    if problems or not loaders:
        lines = "\n".join(problems or ["it is empty"])
        raise ConsumptionLogError(f"{path} does not prove that each sample was served once:\n{lines}")
    return [epoch for epochs in loaders.values() for epoch in epochs]


def _start(line: dict[str, Any], epochs: list[ServedRange]) -> str | None:
    number = line["epoch"]
    expected = epochs[-1].epoch + 1 if epochs else number
    while epochs and epochs[-1].epoch >= number:
        epochs.pop()  # a state from between two epochs was loaded, or a run began anew
    unfinished = bool(epochs) and not epochs[-1]._ended
    epochs.append(ServedRange(line["loader"], number, line["at"], line["unit"], False, 1, line["at"]))
    epochs[-1]._start = line
    if number > expected:
        return f"begins, and epoch {expected} was never served"
    return f"begins, and epoch {number - 1} has no end" if unfinished else None


def _go_on(line: dict[str, Any], epochs: list[ServedRange]) -> str | None:
    """Note that an epoch is resumed, or ends."""
    number, at, resumed = line["epoch"], line["at"], line["event"] == "resume"
    while resumed and epochs and epochs[-1].epoch > number:
        epochs.pop()
    what = f"is resumed at {at}" if resumed else f"ends at {at}"
    if not epochs or epochs[-1].epoch != number:
        return f"{what}, and was never begun"
    last = epochs[-1]
    for name in ("order", "dataset", "of", "unit") if resumed else ():
        if line[name] != last._start[name]:
            changed = "length" if name == "of" else name
            return f"is resumed with another {changed}: {last._start[name]} became {line[name]}"
    if last._digests.setdefault(at, line["digest"]) != line["digest"]:
        return f"{what} with another digest than before: another order was served"
    return _resume(at, last) if resumed else _end(line, last)


def _resume(at: int, last: ServedRange) -> str | None:
    if last._ended and at > last.upto:
        return f"is resumed at {at}, and only {last.upto} were served: {at - last.upto} are lost"
    last.upto, last.complete, last._ended = at, False, False
    last.pieces += 1
    return None


def _end(line: dict[str, Any], last: ServedRange) -> str | None:
    at, length = line["at"], line["of"]
    if last._ended:
        return f"ends twice, at {last.upto} and at {at}"
    if at < last.upto:
        return f"ends at {at}, before {last.upto}, where it was resumed"
    last.upto, last.complete, last._ended = at, line["event"] == "end", True
    if not last.complete or line["unit"] != "samples" or length is None:
        return None
    if at > length:
        return f"served {at} samples of {length}"
    if length - at >= line["step"]:  # less may be dropped
        return f"ends at {at} of {length} samples, and a step takes {line['step']}"
    return None
