"""What a machine knows of the others of its job."""

from __future__ import annotations

import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, replace
from typing import Any

from accel_launch.link import BEAT_S, Wire
from accel_launch.outcome import KILLED
from accel_launch.waiting import Called, Waiting

#: of what launchers tell each other
VERSION = 1


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What has ended the job on another machine, in which attempt: a rank that failed, or the machine itself."""

    machine: int
    host: str
    words: str
    code: int
    cause: str = ""
    place: int = KILLED
    attempt: int = 0
    #: whether somebody has ended the job there
    outside: bool = False

    def message(self) -> dict[str, Any]:
        """This, as launchers tell it each other."""
        return {"is": "failed", **asdict(self)}

    @staticmethod
    def of(message: Mapping[str, Any]) -> Elsewhere:
        """What a message tells.

        Raises: TypeError for one that no launcher of this version sends.
        """
        found = Elsewhere(**{name: value for name, value in message.items() if name != "is"})
        wanted = (int, str, str, int, str, int, int, bool)
        if any(type(one) is not kind for one, kind in zip(astuple(found), wanted, strict=True)):
            raise TypeError(f"no launcher says {message}")
        return found


@dataclass(frozen=True, slots=True)
class Share:
    """What one machine starts: the ranks from `first` on, of `world`, which meet at these ports of `address`."""

    machine: int
    attempt: int
    first: int
    world: int
    address: str
    store_port: int
    master_port: int

    def message(self) -> dict[str, Any]:
        """This, as the first launcher tells it another."""
        return {"is": "go", "share": astuple(self)}

    @staticmethod
    def of(message: Mapping[str, Any]) -> Share:
        """What a message tells.

        Raises: TypeError for one that no launcher of this version sends.
        """
        said = message.get("share")
        wanted = (int, int, int, int, str, int, int)
        if not isinstance(said, list) or [type(one) for one in said] != list(wanted):
            raise TypeError(f"no launcher says {message}")
        return Share(*said)


class Dismissed(Exception):
    """The launcher has nothing to wait for any more: `failed` has ended the job, and `words` say so where it was here.

    It comes out of waits only, in which no process of this machine runs.
    """

    def __init__(self, failed: Elsewhere, words: str = "") -> None:
        super().__init__(failed.words)
        self.failed, self.words = failed, words


class Fleet(ABC):
    """The other machines of a job, while processes run; `failures` are all that they have told of."""

    def __init__(self, machine: int, waiting: Waiting) -> None:
        self.machine, self.host, self.waiting = machine, socket.gethostname(), waiting
        self.failures: list[Elsewhere] = []
        self.lost, self.attempt = False, 0

    @abstractmethod
    def heard(self) -> Elsewhere | None:
        """What has ended the job elsewhere since the last call; asked several times a second."""

    @abstractmethod
    def tell(self, failed: Elsewhere) -> None:
        """Tells the others what has ended it here."""

    @abstractmethod
    def wires(self) -> Iterable[Wire]:
        """The connections that this machine has."""

    def of_now(self, message: Mapping[str, Any]) -> Elsewhere | None:
        """The failure that a message tells of; None for one of an attempt before, unless somebody has ended the job.

        Raises: TypeError for one that no launcher of this version sends.
        """
        failed = Elsewhere.of(message)
        if failed.outside:
            return replace(failed, attempt=self.attempt)
        return failed if failed.attempt == self.attempt else None

    def dismissed(self, called: Called, awaited: str) -> Dismissed:
        """The end of this launcher by a signal, while it waited for something; the others are told."""
        by = f"by {called.number.name} from outside, while"
        words = f"  the job was ended there {by} the launcher waited for {awaited}"
        code = 128 + called.number
        failed = Elsewhere(self.machine, self.host, words, code, attempt=self.attempt, outside=True)
        self.tell(failed)
        return Dismissed(failed, f"accel: the job was ended {by} this launcher waited for {awaited}")

    @contextmanager
    def beating(self) -> Iterator[None]:
        """While a block waits for somebody who reads, a thread gives signs of life; the block uses no connection."""
        over = threading.Event()

        def beat() -> None:
            while not over.wait(BEAT_S):
                for wire in self.wires():
                    wire.beat()

        thread = threading.Thread(target=beat, name="accel-beat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
