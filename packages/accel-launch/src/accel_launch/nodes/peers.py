"""What the machines of a job tell each other while their processes run, over the store of torch's rendezvous."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import Any

from accel_launch.report.job_result import KILLED

#: seconds between two signs of life of a machine, and without any after which it counts as lost
BEAT_S, SILENCE_S = 1.0, 7.0
#: seconds between two looks for what others have to say; and for the first machine to be heard by all at the end
LOOK_S, LEAVING_S = 0.2, 5.0


@dataclass(frozen=True, slots=True)
class NodeFailure:
    """What has ended the job on a machine: a rank that failed, the machine itself, or somebody from `outside`.

    `order` is that of `ProcessExit`, and `traceback` that of the rank.
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
    """The other machines of a round, as one of them sees them; each look costs one request to the store."""

    def __init__(self, store: Any, machine: int, size: int, host: str) -> None:
        self._store, self.machine, self._size, self._host = store, machine, size, host
        #: all that have failed, this machine among them
        self.failures: list[NodeFailure] = []
        self._beats = dict.fromkeys(range(size), 0)
        self._heard_s = dict.fromkeys(range(size), time.monotonic())
        self._beat_s = self._look_s = 0.0
        self._ask("set", f"host {machine}", host)

    def host_of(self, machine: int) -> str:
        """The name of a machine."""
        return str(self._ask("get", f"host {machine}").decode())

    def publish(self, key: str, content: object) -> None:
        """Tells the other machines something that they wait for."""
        self._ask("set", key, json.dumps(content))

    def read(self, key: str) -> Any:
        """What a machine has published, once it has."""
        return json.loads(self._ask("get", key))

    def announce(self, failure: NodeFailure) -> None:
        """Tells all machines of a failure."""
        number = self._ask("add", "failures", 1)
        self._ask("set", f"failure {number}", json.dumps(asdict(failure)))

    def count(self, what: str, more: int = 0) -> int:
        """How many machines have said something, this one with `more`."""
        return int(self._ask("add", what, more))

    def look(self, *, at_once: bool = False) -> list[NodeFailure]:
        """Gives a sign of life, and what has failed since the last look, unless that was just now.

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
                self._find_silent(now)
        new = range(len(self.failures) + 1, self.count("failures") + 1)
        found = [NodeFailure(**self.read(f"failure {number}")) for number in new]
        self.failures += found
        return found

    def leave(self) -> None:
        """Says that this machine has heard all; the first, which serves the store, waits for the others to say so."""
        until = time.monotonic() + LEAVING_S
        try:
            left = self.count("left", 1)
            while self.machine == 0 and left < self._size and time.monotonic() < until:
                time.sleep(LOOK_S / 4)
                left = self.count("left")
        except StoreLost:
            pass

    def _find_silent(self, now: float) -> None:
        """Announces the machines that have given no sign of life for long."""
        for machine in [*self._beats][1:]:
            beats = self._ask("add", f"beats {machine}", 0)
            if beats != self._beats[machine]:
                self._beats[machine], self._heard_s[machine] = beats, now
            elif now - self._heard_s[machine] > SILENCE_S:
                words = f"  the machine is gone: nothing was heard of it for {SILENCE_S:g} s"
                self.announce(NodeFailure(machine, self.host_of(machine), words, 1, lost=True))
                del self._beats[machine]

    def _ask(self, what: str, *arguments: object) -> Any:
        try:
            return getattr(self._store, what)(*arguments)
        except RuntimeError as error:  # torch's DistNetworkError and DistStoreError are of this kind
            raise StoreLost(str(error).splitlines()[0]) from error
