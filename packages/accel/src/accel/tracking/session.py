"""The trackers of an Accelerator: started, called in a thread, resumed, and ended."""

from __future__ import annotations

import logging
import operator
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, final

import torch
from accel_amp import AcceleratedOptimizer
from accel_data.loaders.loader import DataLoaderShard
from accel_track import TRACKERS, GeneralTracker
from accel_track.delivery import Delivery, DueCall
from accel_track.pump import Pump

from accel.configuration import ProjectConfiguration
from accel.tracking.captured import captured, read, runs_on_streams
from accel.tracking.choice import LogWith, choose
from accel.tracking.throughput import ThroughputMeter

logger = logging.getLogger("accel")

PerTracker = Mapping[str, Mapping[str, Any]]
#: seconds that a checkpoint, or the end of training, waits for trackers
PATIENCE_S = 60.0
#: seconds that a checkpoint waits for them which is one of many
SHORT_PATIENCE_S = 1.0


def _checked(method: str, step: Any, own: Any) -> tuple[int | None, PerTracker]:
    """Return the step as a whole number, and the arguments for single trackers, or raise TypeError."""
    try:
        step = None if step is None else operator.index(step)
    except TypeError:
        raise TypeError(f"{method}(step={step!r}): expected a whole number, or None for the step after") from None
    try:
        return step, {name: dict(**given) for name, given in dict(**({} if own is None else own)).items()}
    except TypeError as error:
        raise TypeError(
            f"{method}(log_kwargs={own!r}): expected a dictionary of arguments for each tracker, such as"
            f' {{"local": {{}}}}: {error}'
        ) from None


@final
class TrackingSession:
    """The trackers of an Accelerator on this process.

    Args:
        log_with: The trackers: names, and trackers of the script's own.
        project: The folder of the logs.
        device: The device that the process computes on.
        main: Whether this is the main process, the only one that most trackers run on.
        skips_absent: Only warn of trackers whose clients are not installed, as programs for Accelerate expect.
    """

    def __init__(
        self,
        log_with: LogWith | Iterable[LogWith] | None,
        project: ProjectConfiguration,
        *,
        device: torch.device,
        main: bool,
        skips_absent: bool = False,
    ) -> None:
        warn = logger.warning if main else logger.debug
        self.chosen = choose(log_with, project.logging_dir, warn if skips_absent else None)
        self._device, self._main = device, main
        self.trackers: list[GeneralTracker] = []
        self._project = project
        #: the thread of each tracker that has its own, and the process that they are in
        self._pumps: list[Pump[DueCall]] = []
        self._process = os.getpid()
        self._deliveries: list[Delivery] = []
        #: why calls are dropped for want of trackers, until that is told
        self._untold = "init_trackers was not called"
        #: whether this process has logged since the trackers were started
        self._logged = False
        #: the states of trackers in a checkpoint that was loaded before they started, and whether by `resume`
        self._loaded: Mapping[str, Any] = {}
        self._resuming = False
        self._config: Mapping[str, Any] | None = None
        self._saved_at: dict[str, int] = {}
        self._throughput = ThroughputMeter()

    def start(
        self, project_name: str, config: Mapping[str, Any] | None = None, init_kwargs: PerTracker | None = None
    ) -> None:
        """Start the trackers of this process. Those of a run in the checkpoint that was loaded resume that run.

        Args:
            project_name: The name of the project.
            config: Numbers and texts that describe the run.
            init_kwargs: More arguments, by the name of the tracker.

        Raises:
            Exception: What a tracker raises; no tracker is left started then.
        """
        self.end()
        self._config = config
        made = [self._make(chosen, project_name, (init_kwargs or {})) for chosen in self.chosen]
        wanted = [tracker for tracker in made if self._main or not tracker.main_process_only]
        try:
            for tracker in wanted:
                if not self._gone_on(tracker, self._loaded, resuming=self._resuming):
                    tracker.start()
                self.trackers.append(tracker)
                if config is not None:
                    tracker.store_init_configuration(config)
        except BaseException:
            for tracker in self.trackers:
                tracker.finish()
            self.trackers = []
            raise
        self._deliveries = [Delivery(tracker, read) for tracker in wanted]
        self._logged, self._loaded, self._process = False, {}, os.getpid()
        self._throughput.restart()
        # lazy tensors are computed at the end of a step: before, reading them would cut their graph in two
        lazy = self._device.type != "cpu" and not runs_on_streams(self._device)
        # a thread for each: no tracker waits for another
        self._pumps = [
            Pump(delivery.deliver, hold_back=1 if lazy else 0)
            for delivery in self._deliveries
            if delivery.tracker.in_thread
        ]

    def _make(self, chosen: LogWith, project_name: str, init_kwargs: Mapping[str, Mapping[str, Any]]) -> GeneralTracker:
        if isinstance(chosen, GeneralTracker):
            return chosen
        kind: Any = TRACKERS.load(chosen)
        folder = self._project.logging_dir or kind.default_logging_directory
        folders = [folder] if kind.requires_logging_directory else []
        tracker: GeneralTracker = kind(project_name, *folders, **init_kwargs.get(chosen, {}))
        return tracker

    def _gone_on(self, tracker: GeneralTracker, states: Mapping[str, Any], *, resuming: bool) -> bool:
        """Return True if the tracker resumes the run of its state: `load_state` resumes no run that has ended."""
        state = states.get(tracker.name)
        if not state or not tracker.main_process_only:
            return False
        try:
            if not resuming and tracker.has_ended(state):
                raise LookupError(
                    f"the run {state.get('run', '')} of the checkpoint has ended, and load_state leaves its record as"
                    " it is; accelerator.resume() goes on in it"
                )
            tracker.resume(state)
        except LookupError as error:
            logger.warning("the tracker %s begins a new run: %s", tracker.name, error)
            return False
        return True

    def log(
        self, values: Mapping[str, Any], step: int | None = None, own: PerTracker | None = None, tokens: Any = None
    ) -> None:
        """Hand the values of a step to the trackers, without a wait for any.

        Args:
            values: Numbers, texts and tensors, by name.
            step: The number of the step; None for the one after the last.
            own: More arguments, by the name of the tracker.
            tokens: How many tokens all processes have trained on; with it the speed is recorded too.

        Raises:
            TypeError: The step is no whole number, or `own` is no dictionary of dictionaries.
        """
        if self._records:
            if own is not None or type(step) is not int:  # as is most usual, and costs nothing
                step, own = _checked("log", step, own)
            if tokens is not None:
                values = {**self._throughput.measured(tokens, step), **values}
            self._logged = True
            kept, due = captured(values)
            self._hand_on(DueCall("log", (kept,), {"step": step}, own or {}, due))
        else:
            self._tell_dropped("log")

    def call(self, method: str, arguments: Mapping[str, Any], own: PerTracker | None = None) -> None:
        """Call a method of all trackers, without a wait for any.

        Args:
            method: The name of the method.
            arguments: Its arguments by name, of which the first is passed by position.
            own: More arguments, by the name of the tracker.

        Raises:
            TypeError: As for `log`.
        """
        if self._records:
            step, own = _checked(method, arguments["step"], own)
            self._logged = True
            kept, due = captured({**arguments, "step": step})
            first, *others = kept
            self._hand_on(DueCall(method, (kept[first],), {name: kept[name] for name in others}, own, due))
        else:
            self._tell_dropped(method)

    def _tell_dropped(self, method: str) -> None:
        """Warn once that trackers were asked for and none is there, as in no forked process."""
        if self.chosen and self._main and self._untold and self._process == os.getpid():
            logger.warning("%s: nothing is recorded, as %s", method, self._untold)
            self._untold = ""

    @property
    def _records(self) -> bool:
        """True if this very process has started trackers: a forked process records nothing."""
        return bool(self.trackers) and self._process == os.getpid()

    def _put(self, call: DueCall) -> None:
        if self._records:
            self._hand_on(call)

    def _hand_on(self, call: DueCall) -> None:
        for pump in self._pumps:
            pump.put(call)
        for delivery in self._deliveries:
            if not delivery.tracker.in_thread:
                delivery.deliver([call])

    def prepared(self, ready: object) -> None:
        """Let a prepared loader tell of its waits, and an optimizer of steps that it skips."""
        if self.chosen and isinstance(ready, DataLoaderShard):
            ready.on_wait = self._throughput.waited
        if self.chosen and isinstance(ready, AcceleratedOptimizer) and ready.scaler is not None:
            ready.on_step = self._stepped

    def _stepped(self, optimizer: AcceleratedOptimizer) -> None:
        made = optimizer.outcome
        if made is not True:
            self._put(DueCall("mark", ("skipped step", {}), due=lambda: not made))

    def states(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of the trackers, when they have all that was logged before."""
        self.flush("save_state")
        states = self._states()
        steps = [state["next_step"] - 1 for state in states.values() if "next_step" in state]
        self._saved_at = {"step": max(*steps, 0)} if steps else {}
        return states

    def states_soon(self) -> dict[str, Any]:
        """Return the same for one of many checkpoints, which waits a second at most: a slow tracker must not hold all.

        What a tracker has not by then, its record lacks if the run goes on from this checkpoint.
        """
        self._flushed(SHORT_PATIENCE_S)
        return self._states()

    def _states(self) -> dict[str, Any]:
        # only this process writes the checkpoint: trackers that every process has would all go on in its run
        states = {tracker.name: self._state(tracker) for tracker in self.trackers if tracker.main_process_only}
        return {name: state for name, state in states.items() if state}

    def _state(self, tracker: GeneralTracker) -> Mapping[str, Any]:
        try:
            return tracker.state_dict()
        except Exception as error:  # noqa: BLE001 - a tracker must not spoil a checkpoint
            logger.warning("the checkpoint lacks the tracker %s: %s: %s", tracker.name, type(error).__name__, error)
            return {}

    def saved(self, folder: Path) -> None:
        """Record that the newest checkpoint is on the disk, at the step that it was taken after."""
        self._put(DueCall("mark", ("checkpoint", {"path": str(folder), **self._saved_at})))

    def loaded(self, folder: Path, states: Mapping[str, Any], *, resuming: bool) -> None:
        """Resume the runs of a checkpoint. If this process has logged itself, its trackers stay in their runs.

        Args:
            folder: The folder of the checkpoint.
            states: The states of its trackers, by name.
            resuming: Whether runs that have ended are resumed too.

        Raises:
            Exception: What a tracker raises, of a record that another process writes, say.
        """
        if not self.trackers:
            self._loaded, self._resuming = states, resuming
            return
        if self._logged:
            for tracker in self.trackers:
                there, own = states.get(tracker.name, {}).get("run"), self._state(tracker).get("run")
                if there != own and there is not None:
                    logger.warning(
                        "the tracker %s stays in its run %s, in which this process has logged already, and does not go"
                        " on in the run %s of the checkpoint; load before the first log",
                        *(tracker.name, own, there),
                    )
            self._put(DueCall("mark", ("loaded checkpoint", {"path": str(folder)})))
            return
        for tracker in self.trackers:
            if self._gone_on(tracker, states, resuming=resuming) and self._config is not None:
                tracker.store_init_configuration(self._config)

    def find(self, name: str, *, unwrap: bool) -> Any:
        """Return a tracker, or the object of its client, when it has all that was logged so far.

        Args:
            name: The name of a tracker that was started.
            unwrap: Return the object of its client.

        Raises:
            ValueError: No such tracker was started.
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
        """Wait until the trackers have all that was logged, or warn if that takes too long.

        Args:
            what: The call that waits, for the warning.
        """
        if not self._flushed(PATIENCE_S):
            logger.warning("%s: trackers did not take in %s s what was logged, and get it later", what, PATIENCE_S)

    def _flushed(self, patience_s: float) -> bool:
        until = time.monotonic() + patience_s
        # all are asked, also when the patience is gone
        return all([pump.flush(max(until - time.monotonic(), 0)) for pump in self._pumps])

    def end(self) -> None:
        """End the runs of the trackers, when they have all that was logged, and warn of what they have not."""
        # the thread of a tracker ends its run, so that nothing comes beside or after
        self._put(DueCall("finish", ()))
        until, left = time.monotonic() + PATIENCE_S, 0
        for pump in self._pumps if self._records else []:
            left += pump.close(max(until - time.monotonic(), 0))
        if left:
            logger.warning("%d calls have not reached their trackers in %s s, and may be lost", left, PATIENCE_S)
        for delivery in self._deliveries:
            if delivery.lost:
                logger.warning(
                    "the tracker %s has lost %d calls, or parts of them", delivery.tracker.name, delivery.lost
                )
        if self.trackers:
            self._untold = "end_training has ended the trackers; call it after the last log, or init_trackers again"
        self.trackers, self._pumps, self._deliveries = [], [], []

    def __getstate__(self) -> dict[str, Any]:
        # a copy in another process records nothing
        return self.__dict__ | {"trackers": [], "_pumps": [], "_deliveries": []}
