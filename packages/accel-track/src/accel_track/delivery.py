"""Call trackers, and warn of those that fail, once for each kind of error."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

from accel_track.tracker import GeneralTracker
from accel_track.values import ValuesLeftOut

logger = logging.getLogger("accel")


@dataclass(slots=True)
class DueCall:
    """A call of a method of trackers.

    Args:
        method: Name of the method.
        arguments: Positional arguments.
        keywords: Keyword arguments.
        own: More keyword arguments for single trackers, by the name of the tracker.
        due: Function that waits until the arguments can be read, and returns false if the call is to be left out.
    """

    method: str
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any] = field(default_factory=dict)
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    due: Callable[[], bool] | None = None


@final
class Delivery:
    """The calls of a script to a tracker, whose errors are counted, with a warning of the first of each type.

    In another thread, whatever a tracker raises is such an error. On the main thread, SystemExit and
    KeyboardInterrupt are raised: they may come from a handler of a signal.

    Args:
        tracker: The tracker to call.
        read: Function that makes the arguments of several calls from what the script logged.
    """

    def __init__(self, tracker: GeneralTracker, read: Callable[[list[tuple[Any, ...]]], list[tuple[Any, ...]]]) -> None:
        self.tracker = tracker
        self._read = read
        #: how many calls have failed
        self.lost = 0
        self._told: set[type] = set()

    def deliver(self, calls: list[DueCall]) -> None:
        """Call the tracker with each of these calls, in order.

        The arguments of all calls are read together. If that fails, each call is read alone.
        """
        try:
            due = [call for call in calls if call.due is None or call.due()]
            arguments = self._read([call.arguments for call in due])
        except BaseException as error:  # noqa: BLE001 - of a device, say: training hears of it by itself
            _pass_on(error)
            if len(calls) == 1:
                self._failed("reading what was logged", error)
                return
            for call in calls:
                self.deliver([call])
            return
        for call, read in zip(due, arguments, strict=True):
            try:
                own = call.own.get(self.tracker.name, {})
                getattr(self.tracker, call.method)(*read, **{**call.keywords, **own})
            except BaseException as error:  # noqa: BLE001 - whatever a client raises must not end the training
                self._failed(call.method, error)

    def _failed(self, what: str, error: BaseException) -> None:
        """Count an error, or raise it if it is meant for the program, and not for its tracker."""
        _pass_on(error)
        if type(error) not in self._told:
            self._told.add(type(error))
            how = "left values out of" if isinstance(error, ValuesLeftOut) else "failed in"
            logger.warning(
                "the tracker %s %s %s, and training goes on without what was lost: %s: %s",
                *(self.tracker.name, how, what, type(error).__name__, error),
            )
        self.lost += 1


def _pass_on(error: BaseException) -> None:
    """Raise what is meant for the program: an exit, or an interrupt of the main thread."""
    if not isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
        raise error
