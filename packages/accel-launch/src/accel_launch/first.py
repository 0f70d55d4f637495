"""The launcher of the first of several machines: it gathers the others, deals ranks, and passes on what they say."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from math import inf

from accel_state.errors import CannotRun

from accel_launch.elsewhere import Dismissed, Elsewhere, Fleet, Share
from accel_launch.gathering import Gathering, Other, listen
from accel_launch.link import RETRY_S, Lost, Wire
from accel_launch.machines import Place
from accel_launch.waiting import LOOK_S, Called, Waiting


class First(Fleet):
    """The launcher that the others come to: it deals out ranks, and passes on what any of them has to say."""

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
        super().__init__(0, waiting or Waiting())
        self._place, self._processes, self._asked, self._patient = place, processes, asked, patient
        self._alike = alike or {}
        #: at which processes meet
        self.address = ""
        #: whether somebody has ended the job on another machine, be it after a failure
        self.asked = False
        self._progressed = False
        self._others: list[Other] = []
        self._stack = ExitStack()

    def __enter__(self) -> First:
        return self

    def __exit__(self, *about: object) -> None:
        for one in self._others:
            with suppress(Lost):
                one.wire.send({"is": "over"})
            one.wire.close()
        self._stack.close()

    def gather(self, wait_s: float) -> None:
        """Returns when all machines are there.

        Raises: CannotRun that names those that are not, or do not fit; Dismissed.
        """
        until = time.monotonic() + wait_s
        gathering = Gathering(self._place, self.host, {"num_processes": self._asked, **self._alike}, self.waiting)
        self._others = gathering.others
        try:
            listening = listen(self._place, until if self._patient else 0.0, self.waiting.pause)
            self._stack.enter_context(listening)
            self.address = str(listening.getsockname()[0])
            problems = gathering.gather(listening, until, wait_s)
        except Called as called:
            raise self.dismissed(called, f"{gathering.absent} of {self._place.count} to come") from None
        if problems:
            for one in self._others:
                with suppress(Lost):
                    one.wire.send({"is": "refused", "why": problems})
            raise CannotRun("launch", problems)
        self._others.sort(key=lambda one: one.machine)

    def deal(self, attempt: int, store_port: int, master_port: int) -> Share:
        """Tells each machine its ranks; those of this one."""
        self.attempt, self._progressed = attempt, False
        self.failures.clear()
        world = self._processes + sum(one.processes for one in self._others)
        first, address = self._processes, self.address
        for one in self._others:
            one.ended = False
            share = Share(one.machine, attempt, first, world, address, store_port, master_port)
            with suppress(Lost):  # `heard` tells
                one.wire.send(share.message())
            first += one.processes
        return Share(0, attempt, 0, world, address, store_port, master_port)

    def wires(self) -> Iterator[Wire]:
        """Those to all other machines."""
        return (one.wire for one in self._others)

    def heard(self) -> Elsewhere | None:
        """What any machine has to say; the others are told."""
        found = None
        for one in list(self._others):
            for failed in self._heard_of(one):
                self.failures.append(failed)
                self.tell(failed)
                found = found or failed
        return found

    def _heard_of(self, one: Other) -> list[Elsewhere]:
        """What one machine has to say; its end is the last of it."""
        said: list[Elsewhere] = []
        try:
            for message in one.wire.receive("failed", "ended"):
                if message.get("is") == "ended":
                    one.ended, one.leaves = True, one.leaves or bool(message.get("asked"))
                    self._progressed = self._progressed or bool(message.get("progressed"))
                elif (failed := self.of_now(message)) is not None:
                    said.append(failed)
                    one.leaves = one.leaves or failed.outside
                self.asked = self.asked or one.leaves
        except (Lost, TypeError) as error:
            one.wire.close()
            self._others.remove(one)
            self.lost = True
            if not one.leaves:
                words = f"  the machine is gone: {error}"
                said.append(Elsewhere(one.machine, one.host, words, 1, attempt=self.attempt))
        return said

    def tell(self, failed: Elsewhere) -> None:
        """Tells all others; the one that it comes from knows."""
        for one in self._others:
            if one.machine != failed.machine:
                with suppress(Lost):
                    one.wire.send(failed.message())

    def settle(self, progressed: bool, failed: bool, wait_s: float) -> bool:
        """Whether any machine got further, when all have ended their share.

        They have all time as long as nothing fails, and `wait_s` from then on.

        Raises: Dismissed.
        """
        until = inf
        while True:
            self.heard()
            left = [one for one in self._others if not one.ended]
            if until == inf and (failed or self.failures):
                until = time.monotonic() + wait_s
            if time.monotonic() >= until:
                for one in left:
                    one.wire.close()  # its launcher ends what is left there
                    self._others.remove(one)
                    self.lost = True
                break
            if not left:
                break
            try:
                self.waiting.pause(LOOK_S)
            except Called as called:
                names = ", ".join(f"{one.machine}, {one.host}" for one in left)
                raise self.dismissed(called, f"machine {names} to end") from None
        return progressed or self._progressed

    def idle(self, seconds: float) -> None:
        """Lets time pass, with signs of life.

        Raises: Dismissed, where a machine leaves as well.
        """
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            try:
                self.waiting.pause(min(left, RETRY_S))
            except Called as called:
                raise self.dismissed(called, "the next start of all machines") from None
            found = self.heard()
            if found is not None and (found.outside or self.lost):
                raise Dismissed(found)
