"""The launcher of another machine than the first: it comes to that one, and starts what it is told."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress

from accel_state.errors import CannotRun

from accel_launch.elsewhere import VERSION, Elsewhere, Fleet, Share
from accel_launch.link import Lost, Wire, reach
from accel_launch.machines import Place
from accel_launch.waiting import LOOK_S, Called, Waiting

#: seconds in which the name of the first machine has to be known
KNOWN_S = 10.0


class Joined(Fleet):
    """The launcher of another machine than the first."""

    def __init__(
        self,
        place: Place,
        processes: int,
        *,
        asked: int | None = None,
        patient: bool = False,
        waiting: Waiting | None = None,
        alike: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(place.rank or 0, waiting or Waiting())
        self._alike = {"num_processes": asked, **(alike or {})}
        self._place, self._processes, self._patient = place, processes, patient
        self._wire: Wire | None = None
        self._dealt = False

    def __enter__(self) -> Joined:
        return self

    def __exit__(self, *about: object) -> None:
        if self._wire is not None:
            self._wire.close()

    @property
    def wire(self) -> Wire:
        """The connection to the first machine.

        Raises: Lost before `join`.
        """
        if self._wire is None:
            raise Lost("it was not joined")
        return self._wire

    def wires(self) -> tuple[Wire, ...]:
        """That to the first machine."""
        return (self._wire,) if self._wire is not None else ()

    def join(self, wait_s: float) -> None:
        """Says who this is.

        Raises: CannotRun if the first machine does not answer; Dismissed.
        """
        until = time.monotonic() + wait_s
        place = self._place
        known = until if self._patient else min(until, time.monotonic() + KNOWN_S)
        try:
            found = reach(place.host, place.port, until, known, self.waiting.pause)
        except Called as called:
            raise self.dismissed(called, f"machine 0 to answer at {place.host}:{place.port}") from None
        if isinstance(found, str):
            raise CannotRun(
                "launch",
                [
                    f"machine 0 does not answer at {place.host}:{place.port} ({found}; tried for {wait_s:g} s): start"
                    " accel launch there with --machine_rank 0, and check --main_process_ip and --main_process_port"
                ],
            )
        self._wire = found
        hello = {
            "is": "hello",
            "version": VERSION,
            "machine": place.rank,
            "count": place.count,
            "host": self.host,
            "processes": self._processes,
            "alike": self._alike,
        }
        try:
            self.wire.send(hello)
        except Lost as error:
            raise CannotRun("launch", [f"machine 0, {place.host}, is gone: {error}"]) from error

    def wait(self, wait_s: float) -> Share | None:
        """The next share to start; None when the job is over.

        Raises: CannotRun if this machine is refused, or the first one is gone before it has dealt any; Dismissed.
        """
        until = time.monotonic() + wait_s
        try:
            while time.monotonic() < until:
                for message in self.wire.receive("refused", "go", "over"):
                    if message.get("is") == "refused":
                        raise CannotRun("launch", _reasons(message.get("why")))
                    if message.get("is") == "go":
                        share = Share.of(message)
                        self.attempt = share.attempt
                        self.failures.clear()
                        self._dealt = True
                        return share
                    return None
                self.waiting.pause(LOOK_S)
        except (Lost, TypeError) as error:
            if not self._dealt:
                raise CannotRun("launch", [f"machine 0, {self._place.host}, is gone: {error}"]) from error
            self._note_loss(error)
            return None
        except Called as called:
            awaited = "to end, or to start again" if self._dealt else "to begin"
            raise self.dismissed(called, f"machine 0, {self._place.host}, {awaited}") from None
        raise CannotRun("launch", [f"machine 0, {self._place.host}, has not begun within {wait_s:g} s"])

    def heard(self) -> Elsewhere | None:
        """What the first machine has passed on; its own end is the end of the job as well."""
        if self.lost:
            return None
        try:
            said = self._failed()
        except (Lost, TypeError) as error:
            self._note_loss(error)
            return self.failures[-1]
        self.failures += said
        return said[0] if said else None

    def _note_loss(self, error: Exception) -> None:
        self.lost = True
        words = f"  the machine is gone: {error}"
        self.failures.append(Elsewhere(0, self._place.host, words, 1, attempt=self.attempt))

    def heard_late(self) -> None:
        """Notes what the first machine had passed on before it said that the job is over."""
        with suppress(Lost, TypeError):
            self.failures += self._failed()

    def _failed(self) -> list[Elsewhere]:
        said = [self.of_now(message) for message in self.wire.receive("failed")]
        return [one for one in said if one is not None]

    def tell(self, failed: Elsewhere) -> None:
        """Tells the first machine, which tells the others."""
        with suppress(Lost):
            self.wire.send(failed.message())

    def ended(self, progressed: bool, asked: bool = False) -> None:
        """Says that all processes of this machine have ended; where somebody has asked for it, this launcher leaves."""
        with suppress(Lost):
            self.wire.send({"is": "ended", "progressed": progressed, "asked": asked})


def _reasons(why: object) -> list[str]:
    if not isinstance(why, list) or not why:
        raise TypeError(f"no launcher refuses because of {why}")
    return [str(one) for one in why]
