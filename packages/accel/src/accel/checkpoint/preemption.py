"""The signals by which a scheduler asks a job to stop: noted, for the loop to ask about when it can save."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterable
from types import FrameType
from typing import Any, final

from accel.checkpoint.consensus import RankConsensus

#: seconds in which a signal that comes again is the same one: sent to all processes, and passed on by a launcher
ECHO_S = 1.0
#: those that schedulers send before they end a job
USUAL = ("SIGTERM", "SIGUSR1")
#: those of a terminal: a process that was started with one ignored, as nohup starts it, is not to hear of the terminal
OF_TERMINALS = ("SIGHUP", "SIGINT", "SIGQUIT")


@final
class StopSignals:
    """The signals that were noted. One that comes again, more than a second later, does what it did before.

    Loader workers that are forked meanwhile leave these signals to the process that they work for.
    """

    #: read in loader workers, by what seeds them
    shields_workers = True

    def __init__(self, consensus: RankConsensus) -> None:
        self._consensus = consensus
        #: the name of the signal that came, or None
        self.received: str | None = None
        self._before: dict[int, Any] = {}
        #: when each came first
        self._came: dict[int, float] = {}

    def install(self, names: Iterable[str]) -> None:
        """Note these signals from now on, but for signals of terminals that this process was started to ignore.

        Raises:
            ValueError: It lists names of no signal; or any, and this is not the main thread.
        """
        wanted = list(names)
        wrong = [name for name in wanted if not hasattr(signal, name) or not name.startswith("SIG")]
        if wrong:
            raise ValueError(f"stop_signals {', '.join(map(repr, wrong))}: expected names such as 'SIGTERM', 'SIGUSR1'")
        if wanted and not _in_main_thread():
            raise ValueError(
                f"stop_signals {', '.join(wanted)}: Python lets only the main thread note signals, and this Accelerator"
                f" is made in the thread {threading.current_thread().name}; make it in the main thread, or leave"
                " stop_signals out"
            )
        for name in wanted:
            number = int(getattr(signal, name))
            if name in OF_TERMINALS and signal.getsignal(number) is signal.SIG_IGN:
                self._consensus.warn_once(
                    f"{name} is not noted: this process was started with {name} ignored, as by nohup"
                )
                continue
            if number not in self._before:
                self._before[number] = signal.signal(number, self)

    def requested(self) -> bool:
        """Return True if a signal has asked any process of the job to stop.

        Outside of the main thread, where engines run a training, no signal can be noted. A warning says so.

        Collective:
            Every process must call, after the same optimizer step.
        """
        if not self._before and self.received is None:
            if _in_main_thread():
                self.install(USUAL)
            else:
                self._consensus.warn_once(
                    "stop_requested: no signal is noted, as this training runs in the thread"
                    f" {threading.current_thread().name}, and Python lets only the main thread note signals; the engine"
                    " that runs it has to say when to stop"
                )
        received = self._consensus.exchange("stop_requested", self.received)
        told = [f"rank {rank} was told by {name}" for rank, name in enumerate(received) if name is not None]
        if told:
            self._consensus.warn_once(f"stopping, as {', '.join(told)}")
        return bool(told)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        came = self._came.setdefault(number, now)
        before = self._before.get(number, signal.SIG_DFL)
        if self.received is None:
            self.received = signal.Signals(number).name
        if isinstance(before, StopSignals):  # of another Accelerator, which is to hear of it too
            before(number, frame)
        elif now - came > ECHO_S:
            signal.signal(number, before if before is not None else signal.SIG_DFL)
            signal.raise_signal(number)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
