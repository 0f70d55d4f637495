"""What accel adds to an exchange: the note of it, the digest of the data, and all of it in a world of one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import mean, median
from time import perf_counter
from typing import Any

import torch

from benchmarks.exchanges.libraries import exchange
from benchmarks.row import Lineup, Repetition, Row

STEP_S = 0.005
CALLS = 2000
#: what a call may cost in a world of one, and the contestant that takes exactly this
MOST_S = 5e-6
MOST = f"{MOST_S * 1e6:g} µs"


def _recorder() -> Callable[[], Any]:
    from accel_comm.flight_recorder import FlightRecorder

    recorder = FlightRecorder()

    def note() -> None:
        recorder.begin("all_gather", "float32[32]")
        recorder.end()

    return note


def _digest() -> Callable[[], Any]:
    from accel_ops.agree import digest
    from accel_ops.flat import Flat

    data = torch.zeros(32)
    return lambda: digest(Flat(data, "gather", objects=True))


def _nothing() -> None:
    pass


def _in_a_step(make: Callable[[], Callable[[], Any]]) -> Lineup:
    """Seconds of a step that computes for 5 ms, without and with one call, which finds the caches cold."""

    took: list[float] = []

    def steps(does: Callable[[], Any]) -> Repetition:
        def repeat() -> float:
            does()  # what the collection of garbage before this repetition has cooled down is none of the step's
            began = perf_counter()
            while perf_counter() < began + STEP_S:
                pass
            worked = perf_counter()
            does()
            ended = perf_counter()
            if does is not _nothing:
                took.append(ended - worked)
            return ended - began

        return repeat

    def said() -> str:
        alone = [_calls(make())() - _calls(_nothing)() for _ in range(15)]
        after = [one * 1e6 for one in took[-1000:]]
        return (
            f"{median(alone) * 1e6:.2f} µs a call where one follows the other; {median(after):.1f} µs after a step"
            f" ({mean(after):.0f} on average, which has the pauses of the machine in it)"
        )

    raw = steps(_nothing)
    return Lineup.of({"raw": lambda: raw, "accel": lambda: steps(make())}, remark=said)


def _alone(operation: str) -> Lineup:
    """A call in a world of one, beside a call of a function that does nothing."""
    data = torch.zeros(32)
    took: dict[str, list[float]] = {}

    def kept(name: str, inner: Repetition) -> Repetition:
        def repeat() -> float:
            found = inner()
            took.setdefault(name, []).append(found)
            return found

        return repeat

    def by(library: str) -> Repetition:
        return kept(library, _calls(partial(exchange(library, operation), data)))

    return Lineup.of(
        {
            "raw": lambda: _calls(_nothing),
            "accel": lambda: by("accel"),
            "accelerate": lambda: by("accelerate"),
            MOST: lambda: lambda: MOST_S,
        },
        remark=lambda: ", ".join(f"{name} {median(values) * 1e6:.2f} µs a call" for name, values in took.items()),
    )


def _calls(does: Callable[[], Any]) -> Repetition:
    def repeat() -> float:
        began = perf_counter()
        for _ in range(CALLS):
            does()
        return (perf_counter() - began) / CALLS

    return repeat


ROWS = (
    Row("exchange cost, recorder in a step of 5 ms", partial(_in_a_step, _recorder), 1.01),
    Row("exchange cost, digest in a step of 5 ms", partial(_in_a_step, _digest), 1.01),
    *(
        Row(f"exchange cost, {operation} of 1 small tensor, world 1", partial(_alone, operation), 1.0, against=MOST)
        for operation in ("gather", "reduce", "gather_for_metrics")
    ),
)
