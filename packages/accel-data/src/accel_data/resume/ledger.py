"""A file that tells what a loader served, line by line, and the proof that nothing was lost or repeated."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from accel_data.resume.loader_state import LoaderState


class LedgerError(ValueError):
    """A ledger shows samples that were lost or repeated, or cannot prove that none were."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """A file to which a loader adds one line at each start, resume and end of an epoch."""

    path: Path
    loader: str = "0"

    def write(self, event: str, about: LoaderState, *, world: int, drawn_from: dict[str, Any]) -> None:
        """Adds a line, which is whole or not there after a crash."""
        line = {
            "loader": self.loader,
            "event": event,
            "epoch": about.epoch,
            "at": about.consumed,
            "of": about.length,
            "unit": about.unit,
            "step": about.step,
            "order": _identity(drawn_from),
            "digest": about.digest,
            "dataset": about.dataset,
            "world": world,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


@dataclass(frozen=True, slots=True)
class Served:
    """What one loader served in one epoch: items `first` to `upto` of its order, once each, in `pieces` runs.

    `complete` says whether the pass came to its end; otherwise the script left it, or it still runs.
    """

    loader: str
    epoch: int
    upto: int
    unit: str
    complete: bool
    pieces: int
    first: int = 0


@dataclass(slots=True)
class _Epoch:
    start: dict[str, Any]
    begun_at: int
    pieces: int = 1
    upto: int | None = None
    complete: bool = False
    digests: dict[int, Any] = field(default_factory=dict)


def verify(path: str | Path) -> list[Served]:
    """Proves from a ledger that each epoch served each item once, however often the job crashed and was resized.

    What came after the state from which a later line resumes is undone work, and does not count.

    Raises: LedgerError that lists every line that breaks the proof; FileNotFoundError where there is no ledger.
    """
    wrong: list[str] = []
    loaders: dict[str, list[_Epoch]] = {}
    if not Path(path).exists():
        raise FileNotFoundError(
            f"there is no ledger {path}: none was asked for (ledger=...), no pass has begun, or all loaders read"
            " streams that are sharded at their source, which write none"
        )
    for number, text in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
        try:
            line = json.loads(text)
            problem = _read(line, loaders.setdefault(line["loader"], []))
        except (ValueError, KeyError, TypeError) as error:
            problem = f"this is no line of a ledger ({type(error).__name__}: {error})"
        if problem:
            wrong.append(f"line {number}: {problem}")
    if not loaders and not wrong:
        wrong.append("it is empty")
    if wrong:
        raise LedgerError(f"{path} does not prove that each sample was served once:\n" + "\n".join(wrong))
    return [
        Served(
            loader,
            one.start["epoch"],
            one.upto or one.begun_at,
            one.start["unit"],
            one.complete,
            one.pieces,
            one.start["at"],
        )
        for loader, epochs in loaders.items()
        for one in epochs
    ]


def _read(line: dict[str, Any], epochs: list[_Epoch]) -> str | None:
    event, number, at = line["event"], line["epoch"], line["at"]
    if event == "start":
        return _started(line, epochs)
    if event == "resume":
        while epochs and epochs[-1].start["epoch"] > number:
            epochs.pop()
        if not epochs or epochs[-1].start["epoch"] != number:
            return f"epoch {number} is resumed at {at}, and was never begun"
        return _resumed(line, epochs[-1])
    if not epochs or epochs[-1].start["epoch"] != number:
        return f"epoch {number} ends, and was not begun"
    last = epochs[-1]
    if last.digests.setdefault(at, line["digest"]) != line["digest"]:
        return f"epoch {number} ends at {at} with another digest than before: another order was served"
    if at < last.begun_at:
        return f"epoch {number} ends at {at}, before {last.begun_at}, where it was resumed"
    if last.upto is not None:
        return f"epoch {number} ends twice, at {last.upto} and at {at}"
    last.upto, last.complete = at, event == "end"
    if event != "end" or line["unit"] != "samples" or line["of"] is None:
        return None
    if at > line["of"]:
        return f"epoch {number} served {at} samples of {line['of']}"
    if line["of"] - at >= line["step"]:  # less may be dropped
        return f"epoch {number} ends at {at} of {line['of']} samples, and a step takes {line['step']}"
    return None


def _started(line: dict[str, Any], epochs: list[_Epoch]) -> str | None:
    number = line["epoch"]
    if number == 0:
        epochs.clear()  # a run from the very beginning
    expected = epochs[-1].start["epoch"] + 1 if epochs else number
    while epochs and epochs[-1].start["epoch"] >= number:
        epochs.pop()  # a state from between two epochs was loaded
    unfinished = bool(epochs) and epochs[-1].upto is None
    epochs.append(_Epoch(line, line["at"]))
    if number > expected:
        return f"epoch {number} begins, and epoch {expected} was never served"
    if unfinished:
        return f"epoch {number} begins, and epoch {number - 1} has no end"
    return None


def _resumed(line: dict[str, Any], last: _Epoch) -> str | None:
    number, at, before = line["epoch"], line["at"], last.start
    for name, what in (("order", "order"), ("dataset", "dataset"), ("of", "length"), ("unit", "unit")):
        if line[name] != before[name]:
            return f"epoch {number} is resumed with another {what}: {before[name]} became {line[name]}"
    if last.digests.setdefault(at, line["digest"]) != line["digest"]:
        return f"epoch {number} is resumed at {at} with another digest than before: another order was served"
    if last.upto is not None and at > last.upto:
        return f"epoch {number} is resumed at {at}, and only {last.upto} were served: {at - last.upto} are lost"
    last.begun_at, last.upto, last.complete = at, None, False
    last.pieces += 1
    return None


def _identity(drawn_from: dict[str, Any]) -> str:
    value = 0
    for name in sorted(drawn_from):
        state = drawn_from[name]
        text = state.tolist() if isinstance(state, torch.Tensor) else state
        value = zlib.crc32(json.dumps([name, text]).encode(), value)
    return f"{value:08x}"
