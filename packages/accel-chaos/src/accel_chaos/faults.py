"""Declare the kinds and phases of faults, and draw the faults of a run from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from signal import SIGKILL, SIGSEGV, SIGSTOP, SIGTERM

from accel_state.errors import CannotRun

#: kinds of faults, and what each does
KINDS = {
    "SIGKILL": "the process is killed",
    "SIGSTOP": "the process is stopped, and goes on after some seconds",
    "SIGSTOP-forever": "the process is stopped for ever",
    "SIGTERM": "the job is asked to stop, as before a preemption, and the same command starts again",
    "segfault": "the process ends by a fault of native code",
    "out-of-memory": "the process meets a limit of memory",
    "full-disk": "the disk refuses a write of a save",
    "worker-killed": "a loader worker is killed",
    "exception": "the process raises an exception",
    "resize": "the job is asked to stop, and goes on with another number of processes",
}
#: the signals by which some of them happen; SIGTERM goes to the launcher
SIGNALS = {
    "SIGKILL": SIGKILL,
    "SIGSTOP": SIGSTOP,
    "SIGSTOP-forever": SIGSTOP,
    "SIGTERM": SIGTERM,
    "segfault": SIGSEGV,
    "worker-killed": SIGKILL,
    "resize": SIGTERM,
}
#: phases of a run, in which faults happen
PHASES = {
    "start": "before the first step",
    "forward": "in a forward that trains",
    "backward": "in a backward",
    "optimizer": "before the optimizer changes weights",
    "save": "in a save, before a file is written",
    "rename": "between the last write of a save and its rename",
    "evaluation": "in a forward that does not train",
    "loader-worker": "before the next batch of a loader worker, which has the fault",
    "epoch-end": "at the end of an epoch",
}
#: the end of an optimizer step; what the option --at names a step by, in any phase
STEP = "step"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault to raise, at the first occurrence of its phase that is not before its step, or a place for one.

    Args:
        phase: One of `PHASES`.
        rank: Rank that enters it.
        step: Number of optimizer steps that the job has made by then.
        nth: How often the rank has entered the phase since that step.
        kind: One of `KINDS`.
        number: Number of the fault in the plan, from 1.
        attempt: Name of the attempt in which it came, or in which the place was.
    """

    phase: str
    rank: int
    step: int
    nth: int = 0
    kind: str = ""
    number: int = 0
    attempt: str = ""

    def allows(self, kind: str, steps: int) -> bool:
        """Return whether a kind of fault can happen at this place.

        Args:
            kind: The kind.
            steps: Number of steps of the undisturbed run.
        """
        # perhaps nobody waits after the last step
        if kind == "SIGSTOP-forever" and self.step >= steps:
            return False
        if self.phase == "loader-worker":
            return SIGNALS.get(kind, SIGTERM) != SIGTERM
        if kind == "full-disk":
            return self.phase in ("save", "rename")
        # a job without a step has nothing that a preemption could save
        return kind != "worker-killed" and (self.step > 0 or SIGNALS.get(kind) != SIGTERM)


def draw(
    count: int,
    kinds: Sequence[str],
    places: Sequence[Fault],
    *,
    seed: int,
    at: str = STEP,
) -> list[Fault]:
    """Draw faults, in the order of their steps, and as many of each kind.

    Args:
        count: Number of faults.
        kinds: Kinds to draw from.
        places: The phases that the undisturbed run entered.
        seed: Seed of the draw.
        at: Phase of the faults, or "step" for any, and after a colon their step. Default: any.

    Raises:
        CannotRun: No place allows any of the kinds.
    """
    chance, steps = random.Random(seed), max(one.step for one in places)
    phase, _, step = at.partition(":")
    drawn: list[Fault] = []
    there = [one for one in places if phase in (STEP, one.phase) and step in ("", str(one.step))]
    able = {kind: [one for one in there if one.allows(kind, steps)] for kind in kinds}
    possible = [kind for kind in chance.sample(kinds, len(kinds)) if able[kind]]
    if not possible:
        had = f"the undisturbed run had {steps} steps, and the phases {sorted({one.phase for one in places})}"
        raise CannotRun("accel chaos", [f"{', '.join(kinds)} cannot happen at {at}: {had} (--kinds, --at)"])
    for kind in islice(cycle(possible), count):
        chosen = chance.choice(sorted({one.phase for one in able[kind]}))
        found = chance.choice([one for one in able[kind] if one.phase == chosen])
        # a start may come after any step
        after = chance.choice(there) if chosen == "start" else found
        drawn.append(replace(found, step=after.step, kind=kind))
    drawn.sort(key=lambda fault: fault.step)
    return [replace(fault, number=number) for number, fault in enumerate(drawn, 1)]
