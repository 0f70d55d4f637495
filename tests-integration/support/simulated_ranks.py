"""Hundreds of ranks in one process, whose clock is a number, and a store that counts what it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from accel_comm.hang_detector import HangDetector, Wait
from accel_comm.hang_diagnosis import Diagnosis, RankStatus
from accel_comm.status_store import StatusStore

#: seconds between two turns of a rank
STEP_S = 0.25


@dataclass
class CountingStore:
    """A store of a job: `requests` counts each name of a request of several as a request of its own."""

    notes: dict[str, bytes] = field(default_factory=dict)
    requests: int = 0
    #: bytes that were read
    bytes_read: int = 0
    #: what reading a number finds, when all ranks read it before any has added to it; otherwise what is there now
    before: dict[str, bytes] | None = None

    def clone(self) -> CountingStore:
        """The same store: a connection more."""
        return self

    def set(self, name: str, note: str) -> None:
        """Writes."""
        self.requests += 1
        self.notes[name] = note.encode()

    def get(self, name: str) -> bytes:
        """Reads; an error where a real store would wait for the one who writes."""
        self.requests += 1
        self.bytes_read += len(self.notes[name])
        return self.notes[name]

    def append(self, name: str, note: str) -> None:
        """Writes at the end."""
        self.requests += 1
        self.notes[name] = self.notes.get(name, b"") + note.encode()

    def multi_get(self, names: Sequence[str]) -> list[bytes]:
        """Reads several."""
        return [self.get(name) for name in names]

    def check(self, names: Sequence[str]) -> bool:
        """Whether all of them are there."""
        self.requests += len(names)
        return all(name in self.notes for name in names)

    def add(self, name: str, more: int) -> int:
        """Adds, and reads."""
        self.requests += 1
        if not more and self.before is not None:
            return int(self.before.get(name, b"0"))
        number = int(self.notes.get(name, b"0")) + more
        self.notes[name] = str(number).encode()
        return number


#: what a rank does at a second of the job
Doing = Callable[[int, float], Wait | None]


class SimulatedJob:
    """Ranks that wait as they are told to, each with the detector of a real one."""

    def __init__(self, size: int, *, limit_s: float = 1800.0, at_once: bool = False) -> None:
        self.store, self.now, self.size = CountingStore(), 0.0, size
        self._at_once = at_once
        self.doing: Doing = lambda rank, now: None
        #: what was told, by which rank and when; and when each rank has left
        self.told: list[tuple[int, float, Diagnosis]] = []
        self.left: dict[int, float] = {}
        self.silent = set[int]()
        self._calls: dict[int, str] = {}
        self.status_stores = [StatusStore(self.store, rank) for rank in range(size)]
        self.detectors = [
            HangDetector(store, size, self._status(store.rank), limit_s=limit_s) for store in self.status_stores
        ]

    def run(self, seconds: float, doing: Doing | None = None, call: Callable[[int], str] = str) -> int:
        """The requests of so many seconds, in which ranks wait as `doing` says, each in the call that `call` names."""
        self.doing = doing or self.doing
        self._calls = {rank: call(rank) for rank in range(self.size)}
        before, until = self.store.requests, self.now + seconds
        while self.now < until and len(self.left) + len(self.silent) < self.size:
            self.now += STEP_S
            if self._at_once:
                self.store.before = dict(self.store.notes)
            for rank, detector in enumerate(self.detectors):
                if rank not in self.left and rank not in self.silent:
                    self._turn(rank, detector)
        return self.store.requests - before

    def _turn(self, rank: int, detector: HangDetector) -> None:
        diagnosis = detector.turn(self.now, self.doing(rank, self.now))
        if diagnosis is not None:
            self.told.append((rank, self.now, diagnosis))
        if detector.over:
            self.left[rank] = self.now

    def _status(self, rank: int) -> Callable[[], RankStatus]:
        def status() -> RankStatus:
            wait = self.doing(rank, self.now)
            if wait is None:
                return RankStatus(rank, doing=f"train.py:{rank}")
            what = self._calls[rank]
            return RankStatus(rank, wait.number, what, f"{what} at train.py:{rank}", wait.seconds, wait.patient)

        return status


def waiting_since(began: float, *ranks: int, number: int = 1, patient: bool = False) -> Doing:
    """These ranks, or all, wait since that second of the job."""

    def doing(rank: int, now: float) -> Wait | None:
        waits = now >= began and (not ranks or rank in ranks)
        return Wait(number, now - began, patient) if waits else None

    return doing
