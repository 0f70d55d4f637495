"""Measures steps of several contestants in turn, so that what changes with time changes all of them."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, sleep

import torch

from gpu_checks.check import Setup

Step = Callable[[], object]
#: seconds of a round of one contestant, and rounds
ROUND_S, ROUNDS = 0.25, 7
#: cycles for which the GPU is busy while the host queues steps, some 50 ms
BUSY_CYCLES = 100_000_000


@dataclass(frozen=True, slots=True)
class Cost:
    """What a step costs.

    Args:
        ms: Milliseconds of a step, the median of the rounds.
        ratio: How much that is of the first contestant, the median over rounds of the two.
        spread: Half of the distance between the quartiles of that ratio.
    """

    ms: float
    ratio: float
    spread: float

    def __str__(self) -> str:
        return f"{self.ratio:.3f} ± {self.spread:.3f}"


def synchronise(setup: Setup) -> None:
    """Waits for the GPU."""
    if not setup.rehearsal:
        torch.cuda.synchronize()


def clean(setup: Setup) -> None:
    """Drops what nobody holds, on the GPU and in pinned memory."""
    gc.collect()
    if not setup.rehearsal:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch._C._host_emptyCache()
        torch.cuda.reset_peak_memory_stats()


def interleaved(
    setup: Setup, steps: Mapping[str, Step], *, round_s: float = ROUND_S, rounds: int = ROUNDS
) -> dict[str, Cost]:
    """The cost of a step of each contestant, measured in turn, in an order that is turned round each time.

    Args:
        setup: Where this runs.
        steps: A step of each contestant, which has been warmed up; the first is what the others are compared with.
        round_s: Seconds of a round.
        rounds: Number of rounds.
    """
    first, *_ = steps.values()
    once = max(_seconds(setup, first, setup.size(3, 1)), 1e-6)
    count, rounds = (1, 2) if setup.rehearsal else (max(2, round(round_s / once)), rounds)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds):
        order = list(steps) if number % 2 == 0 else list(steps)[::-1]
        for name in order:
            seconds[name].append(_seconds(setup, steps[name], count))
    base = seconds[next(iter(steps))]
    costs = {}
    for name, took in seconds.items():
        ratios = [mine / theirs for mine, theirs in zip(took, base, strict=True)]
        lower, _, upper = quantiles(ratios, n=4)
        costs[name] = Cost(1e3 * median(took), median(ratios), (upper - lower) / 2)
    return costs


def _seconds(setup: Setup, step: Step, count: int) -> float:
    synchronise(setup)
    began = perf_counter()
    for _ in range(count):
        step()
    synchronise(setup)
    return (perf_counter() - began) / count


def host_ms(setup: Setup, step: Step, *, queued: int = 3, rounds: int = 9) -> float:
    """Milliseconds of the host alone: what it takes to queue a step while the GPU is busy with something else.

    Args:
        setup: Where this runs.
        step: A step that does not wait for the GPU; one that does has the milliseconds of the other work.
        queued: Steps, whose kernels, a thousand at most, have to fit into the queue.
        rounds: Measurements, of which the median is taken.
    """
    took = []
    for _ in range(1 if setup.rehearsal else rounds):
        synchronise(setup)
        if not setup.rehearsal:
            torch.cuda._sleep(BUSY_CYCLES)  # type: ignore[no-untyped-call] # of torch
        began = perf_counter()
        for _ in range(queued):
            step()
        took.append((perf_counter() - began) / queued)
    synchronise(setup)
    return 1e3 * median(took)


def step_gib(setup: Setup, step: Step) -> float:
    """GiB that a step takes on the GPU at its peak, beyond what is there before it."""
    if setup.rehearsal:
        step()
        return 0.0
    clean(setup)
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**30


@dataclass(slots=True)
class HostPeak:
    """The most memory of the machine that was used meanwhile, beyond what was used before, in GiB."""

    gib: float = 0.0


@contextmanager
def host_peak(every_s: float = 0.01) -> Iterator[HostPeak]:
    """Looks at the memory that the machine uses, pinned memory included, which belongs to no process's sum."""
    peak, before, over = HostPeak(), _used_gib(), threading.Event()

    def look() -> None:
        while not over.is_set():
            peak.gib = max(peak.gib, _used_gib() - before)
            sleep(every_s)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()


def _used_gib() -> float:
    lines = Path("/proc/meminfo").read_text().splitlines()
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    return (kib["MemTotal"] - kib["MemAvailable"]) / 2**20


def pinned_gib(setup: Setup) -> float:
    """GiB that torch's allocator of pinned memory holds, as it rounds them."""
    return 0.0 if setup.rehearsal else torch.cuda.host_memory_stats().get("allocated_bytes.current", 0) / 2**30
