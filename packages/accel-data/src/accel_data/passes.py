"""The passes of a loader: which one runs, where it stands, and what is written of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from accel_state import Epoch, StepClock

from accel_data.courses import Course, ShardsCourse
from accel_data.draws import SHARED
from accel_data.ledger import Ledger
from accel_data.state import LoaderState


@dataclass(slots=True)
class Pass:
    """One pass: its number, its course, from what it was drawn, and how far it has come."""

    number: int
    course: Course
    epoch: Epoch
    draws: dict[str, Any]
    sampler: dict[str, Any] | None
    seeded: bool = True
    ended: bool = False
    steps_at_end: int = 0


Fresh = Callable[[], LoaderState]


class Passes:
    """The passes of one loader that run, the one that ended last, and the number of the next.

    Nothing here refers to the loader, which tells what a state of it has in each call (`fresh`): workers that live on
    end as soon as nobody has the loader any more, which those of a loader in a cycle do seconds later.
    """

    def __init__(self, clock: StepClock, ledger: Ledger | None, world: int) -> None:
        self.iteration = 0
        #: how often the loader was put somewhere else
        self.forgotten = 0
        #: where the next pass continues
        self.resume: LoaderState | None = None
        self.ledger = ledger
        self._clock = clock
        self._world = world
        self._running: list[Pass] = []
        self._ended: Pass | None = None

    def open(self, running: Pass, fresh: Fresh, *, resumed: bool) -> None:
        """Notes that a pass begins."""
        self._running.append(running)
        self._tell("resume" if resumed else "start", running, fresh)

    def close(self, running: Pass, fresh: Fresh) -> None:
        """Notes that a pass is over, at its end or before; one that was forgotten counts no more."""
        if not any(one is running for one in self._running):
            return
        self.iteration += 1
        self._running = [one for one in self._running if one is not running]
        running.steps_at_end = self._clock.steps
        running.epoch.loader = None
        self._ended = None if self._clock.due else running
        self._tell("end" if running.ended else "left", running, fresh)

    def forget(self) -> None:
        """Forgets all passes: the loader is put somewhere else."""
        self._running, self._ended = [], None
        self.forgotten += 1

    def here(self, now: dict[str, Any], fresh: Fresh) -> LoaderState | None:
        """The place in the newest pass, or of the one to resume; None where there is none.

        Collective: where the stream is sharded at its source, every rank must call.
        """
        unsettled = self._unsettled()
        running = unsettled or (self._running[-1] if self._running else None)
        if unsettled is not None and self._running:
            now = self._running[-1].draws  # the next epoch is to be drawn again, from where it was
        if running is None:
            return self.resume
        rolled_back = not self._clock.due and running.epoch.ticked
        return replace(
            fresh(),
            begun=True,
            epoch=running.number,
            draws=running.draws,
            now={name: state for name, state in now.items() if name in SHARED},
            sampler=running.sampler,
            seeded=running.seeded,
            **_entries(running, running.epoch.settled if rolled_back else running.epoch.at, fresh()),
        )

    def _unsettled(self) -> Pass | None:
        """The pass that ended inside an accumulation window which is still open."""
        ended = self._ended
        if (
            ended is None
            or not (ended.ended and ended.epoch.ticked)
            or self._clock.due
            or self._clock.steps != ended.steps_at_end
        ):
            return None
        return None if ended.epoch.settled == ended.epoch.at else ended

    def _tell(self, event: str, running: Pass, fresh: Fresh) -> None:
        if self.ledger is None or isinstance(running.course, ShardsCourse):
            return
        about = replace(fresh(), epoch=running.number, **_entries(running, running.epoch.at, fresh()))
        self.ledger.write(event, about, world=self._world, drawn_from=running.draws)


def _entries(running: Pass, at: Any, fresh: LoaderState) -> dict[str, Any]:
    found = running.course.entries(at)
    if fresh.length is not None and fresh.unit == "samples" and fresh.streams:
        found["consumed"] = min(found["consumed"], fresh.length)  # the last batch of a stream may be short
    return found
