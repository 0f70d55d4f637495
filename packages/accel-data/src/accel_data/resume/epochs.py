"""Track the epochs of a loader: which one runs, its position, and its lines in the log."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, final

from accel_state import AccumulationState

from accel_data.resume.consumption_log import ConsumptionLog
from accel_data.resume.cursors import IterableCursor, MapCursor, UnreadCursor
from accel_data.resume.epoch_pass import EpochPass
from accel_data.resume.loader_state import LoaderState

Cursor = MapCursor | IterableCursor | UnreadCursor


@final
@dataclass(slots=True, eq=False)
class EpochRun:
    """A run through one epoch of a loader.

    Args:
        about: The entries of a state that do not depend on the position.
        cursor: The cursor of the epoch.
        epoch: The record of how far the script has come.
        ended: Whether all batches were served.
        steps_at_end: Number of optimizer steps due when the epoch ended.
    """

    about: LoaderState
    cursor: Cursor
    epoch: EpochPass
    ended: bool = False
    steps_at_end: int = 0

    def at_end(self, at: Any) -> bool:
        """Return whether this rank has been served all of the epoch at the position `at`."""
        return self.epoch.last and self.epoch.at is at

    def entries(self, at: Any) -> dict[str, Any]:
        """Return the entries of a state at the position `at`."""
        entries, about = self.cursor.entries(at), self.about
        if about.length is not None and about.unit == "samples" and about.streams:
            entries["consumed"] = min(entries["consumed"], about.length)  # the last batch of a stream may be short
        return entries


@final
class EpochTracker:
    """The epochs of one loader that run, the one that ended last, and the number of the next.

    Nothing here refers to the loader. Workers that live on end as soon as nobody has the loader any more, but those of
    a loader in a reference cycle end seconds later.

    Args:
        accumulation: The window of micro-batches of the script.
        consumption_log: File that gets a line for each event, or None.
        world: Number of ranks that share the data.
    """

    def __init__(self, accumulation: AccumulationState, consumption_log: ConsumptionLog | None, world: int) -> None:
        #: number of the next epoch
        self.iteration = 0
        #: the state to resume from, until the next epoch begins
        self.pending: LoaderState | None = None
        #: whether that state was put back to the start of its epoch, and the script skips by itself what was served
        self.rewound = False
        self.consumption_log = consumption_log
        self._accumulation = accumulation
        self._world = world
        self._running: list[EpochRun] = []
        self._ended: EpochRun | None = None

    def open(self, running: EpochRun, *, resumed: bool) -> None:
        """Note that an epoch begins.

        Args:
            running: The run of the epoch.
            resumed: Whether it begins at a recorded position.
        """
        self._running.append(running)
        self._tell("resume" if resumed else "start", running)

    def close(self, running: EpochRun) -> None:
        """Note that an epoch is over, at its end or before.

        A run that `put_at` has forgotten does not count.
        """
        if running not in self._running:
            return
        self.iteration += 1
        self._running.remove(running)
        running.steps_at_end = self._accumulation.steps
        running.epoch.loader = None
        self._ended = running if running.ended and running.epoch.in_micro_batch and not self._accumulation.due else None
        self._tell("end" if running.ended else "left", running)

    def put_at(self, state: LoaderState) -> None:
        """Forget all epochs, and let the next one begin at the position of a state.

        The log gets the lines of a state at an end.
        """
        self._running, self._ended, self.rewound = [], None, False
        self.pending = state if state.begun else None
        if state.ended:
            for event in ("resume", "end"):
                self._write(event, state)

    @property
    def at_last_batch(self) -> bool:
        """True if the batch that the newest pass has served is its last."""
        return bool(self._running) and self._running[-1].epoch.last

    def take_pending(self) -> LoaderState | None:
        """Return the state that the next epoch resumes from, once, or None if it begins at its start."""
        state, self.pending = self.pending, None
        return None if state is None or state.ended else state

    def resume_point(self) -> tuple[EpochRun, Any] | None:
        """Return the epoch and the position from which a state saved now would resume, or None between epochs.

        An epoch that ended comes before a newer one as long as its last accumulation window is open. Inside a window
        the position is that of the newest optimizer step, and else that after the current batch.
        """
        unsettled = self._unsettled()
        running = unsettled or (self._running[-1] if self._running else None)
        if running is None:
            return None
        rolled_back = not self._accumulation.due and running.epoch.in_micro_batch
        return running, running.epoch.at_step if rolled_back else running.epoch.at

    def rng_of_next(self) -> dict[str, Any] | None:
        """Return the generator states to draw the next epoch from again.

        None unless that epoch began while the last window of the epoch before is open.
        """
        return self._running[-1].about.rng_at_start if self._running and self._unsettled() is not None else None

    def _unsettled(self) -> EpochRun | None:
        """Return the epoch that ended inside an accumulation window which is still open."""
        ended = self._ended
        if ended is None or self._accumulation.due or self._accumulation.steps != ended.steps_at_end:
            return None
        return None if ended.epoch.at_step == ended.epoch.at else ended

    def _tell(self, event: str, running: EpochRun) -> None:
        if self.consumption_log is not None:
            self._write(event, replace(running.about, **running.entries(running.epoch.at)))

    def _write(self, event: str, state: LoaderState) -> None:
        if self.consumption_log is None:
            return
        if state.unit not in ("shards", "readers"):
            self.consumption_log.write(event, state, world=self._world)
        elif event in ("start", "resume"):  # no line of the log can compare the positions of many sources
            warnings.warn(
                f"consumption_log: {self.consumption_log.path} gets no line of a stream of which each process reads"
                " shards of its own; dispatch_batches=True lets the main process read for all, and tell what it read",
                stacklevel=2,
            )
