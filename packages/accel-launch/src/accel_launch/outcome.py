"""How a job ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accel_launch.elsewhere import Elsewhere

#: whose failure comes first: one that was killed, one that says why, one that has lost a peer
KILLED, SAID, OF_A_PEER = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that has ended; `status` is its exit code, or minus the signal that killed it."""

    rank: int
    pid: int
    status: int
    command: tuple[str, ...]
    peak_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended on this machine: which process failed `first`, and which were `stopped` because of it.

    Those in `done` had ended well before. `elsewhere` is what ended it from another machine; `outside` the signal by
    which somebody ended it, `asked` whether somebody has, be it after a failure; `killed` are those that did not end in
    the time they had, which was `grace_s`; `waiting` says of ranks in the middle of an exchange which one that was, and
    `latest` which one the first to fail was in last; `said` is the end of the errors that the first one has printed
    (None: nobody has read them), `shown` whether they were seen, and `last` whether they were seen last; `logs` is the
    folder of all that was printed; `progressed` tells whether the job has left a checkpoint.
    """

    size: int
    first: Ended | None = None
    stopped: tuple[int, ...] = ()
    done: tuple[int, ...] = ()
    outside: Signals | None = None
    asked: bool = False
    killed: tuple[int, ...] = ()
    waiting: Mapping[int, str] = field(default_factory=dict)
    latest: str = ""
    grace_s: float = 0.0
    progressed: bool = False
    elsewhere: Elsewhere | None = None
    said: str | None = None
    last: bool = True
    shown: bool = True
    logs: Path | None = None

    @property
    def well(self) -> bool:
        """Whether all processes have ended by themselves, and none has failed."""
        return self.first is None and self.outside is None and self.elsewhere is None

    @property
    def by_somebody(self) -> bool:
        """Whether somebody has ended the job, here or on another machine."""
        asked = self.asked or self.outside is not None
        return asked or (self.elsewhere is not None and self.elsewhere.outside)

    @property
    def code(self) -> int:
        """The exit code of the job: that of the first process to fail, 128 + n where signal n killed it."""
        if self.elsewhere is not None and (self.outside is None or self.first is None):
            return self.elsewhere.code
        if self.first is None:
            return 0
        if self.outside is not None and self.first.status < 0:
            return 128 + self.outside
        return self.first.status if self.first.status > 0 else 128 - self.first.status
