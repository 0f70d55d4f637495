"""Declare the kinds and phases of faults, and draw the faults of a run from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

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
#: the kinds that a loader worker may have, and those that ask the launcher to stop
OF_WORKERS = ("worker-killed", "SIGKILL", "SIGSTOP", "SIGSTOP-forever", "segfault")
PREEMPTIONS = ("SIGTERM", "resize")
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

    def allows(self, kind: str, *, world: int, steps: int) -> bool:
        """Return whether a kind of fault can happen there.

        Args:
            kind: The kind.
            world: Number of processes.
            steps: Number of steps of the undisturbed run.
        """
        # nobody waits for a process that is alone, and perhaps nobody after the last step
        if kind == "SIGSTOP-forever" and (world == 1 or 0 < steps <= self.step):
            return False
        if self.phase == "loader-worker":
            return kind in OF_WORKERS
        if kind in ("worker-killed", "full-disk"):
            return self.workers if kind == "worker-killed" else self.phase in ("save", "rename")
        # a job that has no step yet has nothing that a preemption could save
        return kind not in PREEMPTIONS or self.phase != "start"


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
    chance, drawn = random.Random(seed), list[tuple[int, str, Occurrence]]()
    steps = max((one.step for one in occurrences), default=0)
    for number in range(count):
        phase, step = at[number % len(at)] if at else (STEP, None)
        there = [one for one in occurrences if phase in (STEP, one.phase) and step in (None, one.step)]
        able = {kind: [one for one in there if one.allows(kind, world=world, steps=steps)] for kind in kinds}
        # each kind is as likely as the others, and so is each phase
        possible = [kind for kind in kinds if able[kind]]
        if not possible:
            had = ", ".join(sorted({one.phase for one in occurrences}))
            words = (
                f"the undisturbed run had the phases {had}, at the steps 0 to {steps}; choose others (--kinds, --at)"
            )
            raise CannotRun(
                "accel chaos", [f"no fault of kind {', '.join(kinds)} can happen at {phase}:{step}: {words}"]
            )
        kind = chance.choice(possible)
        phase = chance.choice(sorted({one.phase for one in able[kind]}))
        found = chance.choice([one for one in able[kind] if one.phase == phase])
        # a start may come after any step
        drawn.append((chance.choice(there).step if phase == "start" else found.step, kind, found))
    ordered = sorted(drawn, key=lambda fault: fault[0])
    return [Fault(n, kind, one.phase, one.rank, step, one.nth) for n, (step, kind, one) in enumerate(ordered, 1)]
