"""The trackers of an Accelerator: chosen, started, called in a thread, gone on with, and ended."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, final

import torch
from accel_amp import AcceleratedOptimizer
from accel_track import TRACKERS, GeneralTracker
from accel_track.delivery import Delivery, DueCall
from accel_track.pump import Pump

from accel.configuration import ProjectConfiguration
from accel.tracking.captured import captured, read, runs_on_streams

logger = logging.getLogger("accel")

LogWith = str | GeneralTracker
#: seconds that a checkpoint, or the end of training, waits for trackers
PATIENCE_S = 60.0
ALL = "all"


def choose(log_with: LogWith | Iterable[LogWith] | None, logging_dir: str | Path | None) -> list[LogWith]:
    """The trackers that were asked for: names, without "all" and doubles, and trackers of the user's own.

    Raises: ValueError or ImportError that lists all that stands against them.
    """
    asked = [] if log_with is None else [log_with] if isinstance(log_with, str | GeneralTracker) else list(log_with)
    problems, absent = list[str](), list[str]()
    chosen: list[LogWith] = []
    for wanted in asked:
        if isinstance(wanted, GeneralTracker):
            chosen.append(wanted)
        elif not isinstance(wanted, str):
            hint = f"; call it: {wanted.__name__}(...)" if isinstance(wanted, type) else ""
            problems.append(f"log_with={wanted!r}: expected a name, or a tracker (accel.tracking.GeneralTracker){hint}")
        elif wanted == ALL:
            chosen += [name for name in TRACKERS.names() if TRACKERS.load(name).missing() is None]
        elif wanted not in TRACKERS.names():
            problems.append(f"log_with={str(wanted)!r}: expected {', '.join((ALL, *TRACKERS.names()))}, or a tracker")
        else:
            chosen.append(str(wanted))
    chosen = list(dict.fromkeys(chosen))
    for tracker in (TRACKERS.load(name) for name in chosen if isinstance(name, str)):
        if (missing := tracker.missing()) is not None:
            absent.append(f"log_with={tracker.name!r} needs a package that is not installed: {missing}")
        if tracker.requires_logging_directory and not (logging_dir or tracker.default_logging_directory):
            problems.append(
                f"log_with={tracker.name!r} requires a logging_dir: pass Accelerator(project_dir=...), or"
                " ProjectConfiguration(logging_dir=...)"
            )
    names = [tracker if isinstance(tracker, str) else tracker.name for tracker in chosen]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        problems.append(f"log_with has two trackers of the name {', '.join(doubled)}; give each a name of its own")
    if problems:
        raise ValueError("Accelerator(...): " + "\n  ".join([*problems, *absent]))
    if absent:
        raise ImportError("Accelerator(...): " + "\n  ".join(absent))
    return chosen


@final
class TrackingSession:
    """The trackers of an Accelerator on this process."""

    def __init__(
        self,
        log_with: LogWith | Iterable[LogWith] | None,
        project: ProjectConfiguration,
        *,
        device: torch.device,
        main: bool,
    ) -> None:
        self.chosen = choose(log_with, project.logging_dir)
        self._device, self._main = device, main
        self.trackers: list[GeneralTracker] = []
        self._project = project
        self._pump: Pump[DueCall] | None = None
        self._delivery, self._direct = Delivery([], read), Delivery([], read)
        #: whether this process has logged since the trackers were started
        self._logged = False
        #: the states of trackers in the checkpoint that was loaded last
        self._loaded: Mapping[str, Any] = {}
        self._config: Mapping[str, Any] | None = None

    def start(
        self,
        project_name: str,
        config: Mapping[str, Any] | None,
        init_kwargs: Mapping[str, Mapping[str, Any]] | None,
    ) -> None:
        """Starts the trackers of this process; those of a run in the checkpoint that was loaded go on in that run.

        Raises: what a tracker raises; no tracker is left started then.
        """
        self.end()
        self._config = config
        made = [self._make(chosen, project_name, (init_kwargs or {})) for chosen in self.chosen]
        wanted = [tracker for tracker in made if self._main or not tracker.main_process_only]
        try:
            for tracker in wanted:
                if not self._gone_on(tracker):
                    tracker.start()
                self.trackers.append(tracker)
                if config is not None:
                    tracker.store_init_configuration(config)
        except BaseException:
            for tracker in self.trackers:
                tracker.finish()
            self.trackers = []
            raise
        self._delivery = Delivery([tracker for tracker in wanted if tracker.in_thread], read)
        self._direct = Delivery([tracker for tracker in wanted if not tracker.in_thread], read)
        self._logged = False
        if self.trackers:
            # lazy tensors are computed at the end of a step: before, reading them would cut their graph in two
            lazy = self._device.type != "cpu" and not runs_on_streams(self._device)
            self._pump = Pump(self._delivery.deliver, hold_back=1 if lazy else 0)

    def _make(self, chosen: LogWith, project_name: str, init_kwargs: Mapping[str, Mapping[str, Any]]) -> GeneralTracker:
        if isinstance(chosen, GeneralTracker):
            return chosen
        kind: Any = TRACKERS.load(chosen)
        folder = self._project.logging_dir or kind.default_logging_directory
        folders = [folder] if kind.requires_logging_directory else []
        tracker: GeneralTracker = kind(project_name, *folders, **init_kwargs.get(chosen, {}))
        return tracker

    def _gone_on(self, tracker: GeneralTracker) -> bool:
        """Whether the tracker goes on in the run of the checkpoint."""
        state = self._loaded.get(tracker.name)
        if not state:
            return False
        try:
            tracker.resume(state)
        except LookupError as error:
            logger.warning("the tracker %s begins a new run: %s", tracker.name, error)
            return False
        return True

    def log(self, values: Mapping[str, Any], step: int | None, own: Mapping[str, Mapping[str, Any]] | None) -> None:
        """Hands the values of a step to the trackers, without waiting for any."""
        if self._pump is not None:
            self._logged = True
            kept, due = captured(values)
            self._put(DueCall("log", (kept,), {"step": step}, own or {}, due))

    def call(self, method: str, arguments: Mapping[str, Any], own: Mapping[str, Mapping[str, Any]] | None) -> None:
        """Calls a method of all trackers, without waiting for any; the first argument is positional."""
        if self._pump is not None:
            self._logged = True
            kept, due = captured(arguments)
            first, *others = kept
            self._put(DueCall(method, (kept[first],), {name: kept[name] for name in others}, own or {}, due))

    def _put(self, call: DueCall) -> None:
        if self._pump is not None and self._delivery.trackers:
            self._pump.put(call)
        if self._direct.trackers:
            self._direct.deliver([call])

    def prepared(self, ready: object) -> None:
        """Is told of each object that was prepared: an optimizer that may skip steps tells of them."""
        if self.chosen and isinstance(ready, AcceleratedOptimizer) and ready.scaler is not None:
            ready.on_step = self._stepped

    def _stepped(self, optimizer: AcceleratedOptimizer) -> None:
        made = optimizer.outcome
        if self._pump is not None and made is not True:
            self._put(DueCall("mark", ("skipped step", {}), due=lambda: not made))

    def states(self) -> dict[str, Any]:
        """What a checkpoint has of the trackers, when they have all that was logged before."""
        self.flush("save_state")
        states = {}
        for tracker in self.trackers:
            try:
                states[tracker.name] = tracker.state_dict()
            except Exception as error:  # noqa: BLE001 - a tracker must not spoil a checkpoint
                logger.warning("the checkpoint lacks the tracker %s: %s: %s", tracker.name, type(error).__name__, error)
        return {name: state for name, state in states.items() if state}

    def saved(self, folder: Path) -> None:
        """Notes a checkpoint."""
        self._put(DueCall("mark", ("checkpoint", {"path": str(folder)})))

    def loaded(self, folder: Path, states: Mapping[str, Any]) -> None:
        """Goes on in the runs of a checkpoint; what this process has logged itself stays."""
        self._loaded = states
        if self._logged:
            self._put(DueCall("mark", ("loaded checkpoint", {"path": str(folder)})))
            return
        for tracker in self.trackers:
            if self._gone_on(tracker) and self._config is not None:
                tracker.store_init_configuration(self._config)

    def find(self, name: str, *, unwrap: bool) -> Any:
        """The tracker of that name, or the object of its client, when it has all that was logged so far.

        Raises: ValueError for a name that is not there.
        """
        self.flush("get_tracker")
        for tracker in self.trackers:
            if tracker.name == name:
                return tracker.tracker if unwrap else tracker
        if not self._main:
            return GeneralTracker(_blank=True)
        there = ", ".join(tracker.name for tracker in self.trackers) or "none; call init_trackers first"
        raise ValueError(f"get_tracker({name!r}): no such tracker was started; there are: {there}")

    def flush(self, what: str) -> None:
        """Returns when the trackers have all that was logged; warns if that takes too long."""
        if self._pump is not None and not self._pump.flush(PATIENCE_S):
            logger.warning("%s: trackers did not take in %s s what was logged, and get it later", what, PATIENCE_S)

    def end(self) -> None:
        """Ends the runs of the trackers, when they have all that was logged; says what they have not."""
        if self._pump is None:
            return
        left = self._pump.close(PATIENCE_S)
        self._pump = None
        if left:
            logger.warning("%d calls of log never reached the trackers: they took longer than %s s", left, PATIENCE_S)
        for tracker in self.trackers:
            delivery = self._delivery if tracker.in_thread else self._direct
            delivery.call(tracker, "finish")
            if delivery.lost[tracker.name]:
                logger.warning("the tracker %s has lost %d calls", tracker.name, delivery.lost[tracker.name])
        self.trackers = []

    def __getstate__(self) -> dict[str, Any]:
        # a copy in another process records nothing
        return self.__dict__ | {
            "trackers": [],
            "_pump": None,
            "_delivery": Delivery([], read),
            "_direct": Delivery([], read),
        }
