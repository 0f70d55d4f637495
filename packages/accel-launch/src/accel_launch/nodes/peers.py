"""Messages between the machines of a job while their processes run, over the store of the rendezvous."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from accel_launch.report.job_result import KILLED

#: seconds between two signs of life of a machine, and without any after which it counts as lost
BEAT_S, SILENCE_S = 1.0, 5.0
#: seconds between two looks for what others have to say; and for the first machine to be heard by all at the end
LOOK_S, LEAVING_S = 0.2, 5.0


@dataclass(frozen=True, slots=True)
class NodeFailure:
    """The end of a job on a machine, by a rank that failed, the loss of the machine, or a signal from `outside`.

    `order` is as in `ProcessExit`, and `traceback` is the traceback of the rank.
    """

    machine: int
    host: str
    words: str
    code: int
    traceback: str = ""
    order: int = KILLED
    outside: bool = False
    lost: bool = False


class StoreLost(Exception):
    """The first machine, which serves the store, is gone."""


class Peers:
    """The machines of a round, as one machine sees the others; each look costs one request to the store."""

    def __init__(self, store: Any, machine: int, hosts: Sequence[str]) -> None:
        self._store, self.machine, self.size = store, machine, len(hosts)
        self.hosts = hosts
        #: all that have failed, this machine among them, in an order that is the same on all
        self.failures: list[NodeFailure] = []
        self._beats: dict[int, tuple[int, float]] = {}
        self._beat_s = self._look_s = 0.0

    def publish(self, key: str, content: object) -> None:
        """Tells the other machines something that they wait for."""
        self._ask("set", key, json.dumps(content))

    def read(self, key: str) -> Any:
        """The content that a machine publishes; waits for it."""
        return json.loads(self._ask("get", key))

    def announce(self, words: str, code: int, **more: Any) -> None:
        """Tells all machines of a failure of this machine; `more` is for `NodeFailure`."""
        self._announce(NodeFailure(self.machine, self.hosts[self.machine], words, code, **more))

    def count(self, what: str, more: int = 0) -> int:
        """The count of that name in the store, after this machine has added `more`."""
        return int(self._ask("add", what, more))

    def look(self, *, at_once: bool = False) -> list[NodeFailure]:
        """Gives a sign of life, and returns the failures since the last look; none if that was just now.

        Raises: StoreLost.
        """
        now = time.monotonic()
        if now - self._look_s < LOOK_S and not at_once:
            return []
        self._look_s = now
        if now - self._beat_s >= BEAT_S:
            self._beat_s = now
            self._ask("add", f"beats {self.machine}", 1)
            if self.machine == 0:
                self._announce_silent(now)
        lines = self._ask("get", "failures").splitlines() if self._ask("check", ["failures"]) else []
        new = [NodeFailure(**json.loads(line)) for line in lines[len(self.failures) :]]
        self.failures += new
        return new

    def lost_store(self, host: str, why: StoreLost) -> NodeFailure:
        """Notes, as no store can tell it, that the first machine is gone, which has that host."""
        self.failures.append(NodeFailure(0, host, f"  the machine is gone: {why}", 1, lost=True))
        return self.failures[-1]

    def leave(self) -> None:
        """Says that this machine has heard all; the first, which serves the store, waits for the others to say so."""
        until = time.monotonic() + LEAVING_S
        size = self.size - len({failure.machine for failure in self.failures if failure.lost})
        try:
            left = self.count("left", 1)
            while self.machine == 0 and left < size and time.monotonic() < until:
                time.sleep(LOOK_S / 4)
                left = self.count("left")
        except StoreLost:
            pass

    def _announce_silent(self, now: float) -> None:
        """Announces the machines that have given no sign of life for long."""
        known = {failure.machine for failure in self.failures if failure.lost}
        for machine in set(range(1, self.size)) - known:
            beats = self.count(f"beats {machine}")
            before, heard_s = self._beats.get(machine, (-1, now))
            self._beats[machine] = (beats, now if beats != before else heard_s)
            if beats == before and now - heard_s > SILENCE_S:
                words = f"  the machine is gone: nothing was heard of it for {SILENCE_S:g} s"
                self._announce(NodeFailure(machine, self.hosts[machine], words, 1, lost=True))

    def _announce(self, failure: NodeFailure) -> None:
        self._ask("append", "failures", json.dumps(asdict(failure)) + "\n")

    def _ask(self, what: str, *arguments: object) -> Any:
        try:
            return getattr(self._store, what)(*arguments)
        except RuntimeError as error:  # torch's DistNetworkError and DistStoreError are of this kind
            raise StoreLost(str(error).splitlines()[0]) from error
