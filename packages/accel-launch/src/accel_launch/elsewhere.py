"""What a machine knows of the others of its job."""

from __future__ import annotations

import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass
from typing import Any

from accel_launch.link import BEAT_S, Wire
from accel_launch.outcome import KILLED

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


class Fleet(ABC):
    """The other machines of a job, while processes run; `failures` are all that they have told of."""

    def __init__(self, machine: int) -> None:
        self.machine, self.host = machine, socket.gethostname()
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
