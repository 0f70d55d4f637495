"""Declare the kinds and phases of faults, and draw the faults of a run from a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from accel_state.errors import CannotRun

#: kinds of faults, and what each does
KINDS = {
    "SIGKILL": "the process is killed",
    "SIGSTOP": "the process is stopped, and goes on after some seconds",
    "SIGSTOP-forever": "the process is stopped for ever",
    "SIGTERM": "the job is asked to stop, as before a preemption, and the same command starts again",
    "segfault": "the process reads memory that it does not have",
    "out-of-memory": "the process meets a limit of memory",
    "full-disk": "the disk refuses to write, from a save on",
    "worker-killed": "a loader worker is killed",
    "exception": "the process raises an exception",
    "resize": "the job is asked to stop, and goes on with another number of processes",
}
#: phases of a run, in which faults happen
PHASES = {
    "start": "before the first step",
    "forward": "in a forward that trains",
    "backward": "in a backward",
    "optimizer": "before the optimizer changes weights",
    "save": "in a save",
    "rename": "between the last write of a save and its rename",
    "evaluation": "in a forward that does not train",
    "loader-worker": "while the process waits for a loader worker, which has the fault",
    "epoch-end": "at the end of an epoch",
}
#: kinds after which the process goes on
SURVIVED = ("SIGSTOP",)
#: kinds that a loader worker may have
OF_WORKERS = ("worker-killed", "SIGKILL", "SIGSTOP", "SIGSTOP-forever", "segfault", "out-of-memory")
#: what the option --at names a step by, in any phase
STEP = "step"


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A phase that a rank entered in the undisturbed run.

    Args:
        phase: The phase.
        rank: The rank.
        step: Number of optimizer steps that the job had made.
        nth: How often the rank had entered the phase since that step.
        workers: True if the rank had loader workers.
    """

    phase: str
    rank: int
    step: int
    nth: int = 0
    workers: bool = False


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault to raise, at the first occurrence of its phase that is not before its step.

    Args:
        number: Its number in the plan, from 1.
        kind: One of `KINDS`.
        phase: One of `PHASES`.
        rank: Rank that has it.
        step: Number of optimizer steps that the job has made by then.
        nth: How often the phase occurs before it, at this step.
    """

    number: int
    kind: str
    phase: str
    rank: int
    step: int
    nth: int = 0


def allows(kind: str, occurrence: Occurrence, *, world: int, steps: int) -> bool:
    """Return whether a kind of fault can happen there.

    Args:
        kind: The kind.
        occurrence: The place.
        world: Number of processes.
        steps: Number of steps of the undisturbed run.
    """
    phase = occurrence.phase
    # nobody waits for a process that is alone, and perhaps nobody after the last step
    if kind == "SIGSTOP-forever" and (world == 1 or 0 < steps <= occurrence.step):
        return False
    if phase == "loader-worker":
        return kind in OF_WORKERS
    if kind == "worker-killed":
        return occurrence.workers
    if kind == "full-disk":
        return phase in ("save", "rename")
    # a job that has no step yet has nothing that a preemption could save
    return kind not in ("SIGTERM", "resize") or phase != "start"


def draw(
    count: int,
    kinds: Sequence[str],
    occurrences: Sequence[Occurrence],
    *,
    seed: int,
    world: int,
    at: Sequence[tuple[str, int | None]] = (),
) -> list[Fault]:
    """Draw faults, in the order of their steps.

    Args:
        count: Number of faults.
        kinds: Kinds to draw from.
        occurrences: Phases that the undisturbed run entered.
        seed: Seed of the draw.
        world: Number of processes.
        at: Places for the faults in turn: a phase or "step", and a step. Default: any.

    Raises:
        CannotRun: No place allows any of the kinds.
    """
    chance, faults = random.Random(seed), list[Fault]()
    steps = max((occurrence.step for occurrence in occurrences), default=0)
    for number in range(count):
        place = at[number % len(at)] if at else None
        pairs: dict[str, dict[str, list[Occurrence]]] = {}
        for occurrence in occurrences:
            if place is None or _is_at(occurrence, *place):
                for kind in kinds:
                    if allows(kind, occurrence, world=world, steps=steps):
                        pairs.setdefault(kind, {}).setdefault(occurrence.phase, []).append(occurrence)
        if not pairs:
            raise CannotRun("accel chaos", [_nowhere(kinds, place, occurrences)])
        kind = chance.choice(sorted(pairs))
        found = chance.choice(pairs[kind][chance.choice(sorted(pairs[kind]))])
        # a start comes after any step
        step = chance.choice(occurrences).step if found.phase == "start" and place is None else found.step
        faults.append(Fault(0, kind, found.phase, found.rank, step, found.nth))
    faults.sort(key=lambda fault: fault.step)
    for number, fault in enumerate(faults):
        # a process that goes on does not start again
        if fault.phase == "start" and number and faults[number - 1].kind in SURVIVED:
            fault = Fault(0, fault.kind, "forward", fault.rank, fault.step)
        faults[number] = Fault(number + 1, fault.kind, fault.phase, fault.rank, fault.step, fault.nth)
    return faults


def _is_at(occurrence: Occurrence, phase: str, step: int | None) -> bool:
    return phase in (STEP, occurrence.phase) and step in (None, occurrence.step)


def _nowhere(kinds: Sequence[str], place: tuple[str, int | None] | None, occurrences: Sequence[Occurrence]) -> str:
    there = [phase for phase in PHASES if any(phase == occurrence.phase for occurrence in occurrences)]
    where = "" if place is None else f" at {place[0]}" + ("" if place[1] is None else f":{place[1]}")
    last = max((occurrence.step for occurrence in occurrences), default=0)
    return (
        f"no fault of kind {', '.join(kinds)} can happen{where}: the undisturbed run had the phases"
        f" {', '.join(there)}, at the steps 0 to {last}; choose others (--kinds, --at)"
    )


def write_plan(path: Path, faults: Sequence[Fault]) -> None:
    """Write the faults of a run for its processes."""
    path.write_text(json.dumps([asdict(fault) for fault in faults]), encoding="utf-8")


def read_plan(path: Path) -> list[Fault]:
    """Return the faults of a run, or none if there is no plan."""
    if not path.exists():
        return []
    planned: list[Mapping[str, object]] = json.loads(path.read_text(encoding="utf-8"))
    return [Fault(**fault) for fault in planned]  # type: ignore[arg-type] # as written
