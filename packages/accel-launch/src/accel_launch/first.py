"""The launcher of the first of several machines: it gathers the others, deals ranks, and passes on what they say."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from math import inf

from accel_state.errors import CannotRun

from accel_launch.elsewhere import VERSION, Elsewhere, Fleet, Share
from accel_launch.link import RETRY_S, Lost, Message, Wire
from accel_launch.machines import Place

#: seconds in which a machine that has come says who it is
HELLO_S = 5.0


@dataclass
class _Other:
    """The launcher of another machine, as the first one knows it."""

    wire: Wire
    machine: int
    host: str
    processes: int


class First(Fleet):
    """The launcher that the others come to: it deals out ranks, and passes on what any of them has to say."""

    def __init__(self, place: Place, processes: int, *, asked: int | None = None, patient: bool = False) -> None:
        super().__init__(0)
        self._place, self._processes, self._asked, self._patient = place, processes, asked, patient
        #: at which processes meet
        self.address = ""
        self._others: list[_Other] = []
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

        Raises: CannotRun that names those that are not, or do not fit.
        """
        until = time.monotonic() + wait_s
        listening = _listen(self._place, until if self._patient else 0.0)
        self._stack.enter_context(listening)
        self.address = str(listening.getsockname()[0])
        problems: list[str] = []
        came: dict[int, str] = {0: self.host}
        while len(self._others) + 1 < self._place.count and not problems:
            self._look_after(came)
            listening.settimeout(max(min(until - time.monotonic(), RETRY_S), 0.01))
            try:
                connection, (address, *_) = listening.accept()
            except TimeoutError:
                if time.monotonic() >= until:
                    problems.append(_missing(came, self._place, wait_s))
                continue
            wire = Wire(connection)
            try:
                hello = wire.expect("hello", time.monotonic() + HELLO_S)
            except Lost:
                hello = None
            if hello is None:
                wire.close()  # somebody else: a scan of ports, say
                continue
            self._look_after(came)  # the one before may have left
            try:
                wrong = self._admit(wire, hello, str(address), came)
            except (KeyError, TypeError, ValueError, OverflowError):
                wire.close()
                continue
            if wrong:
                with suppress(Lost):
                    wire.send({"is": "refused", "why": wrong})
                wire.close()
                problems += wrong
        if problems:
            for one in self._others:
                with suppress(Lost):
                    one.wire.send({"is": "refused", "why": problems})
            raise CannotRun("launch", problems)
        self._others.sort(key=lambda one: one.machine)

    def _admit(self, wire: Wire, hello: Message, address: str, came: dict[int, str]) -> list[str]:
        machine, processes, host = int(hello["machine"]), int(hello["processes"]), f"{hello.get('host')} ({address})"
        if not 0 <= machine < int(hello["count"]) or processes < 1:
            raise ValueError(f"no launcher says that it is machine {machine} with {processes} processes")
        wrong = []
        if hello.get("version") != VERSION:
            wrong.append(f"{host} runs another version of accel launch: install the same one on all machines")
        if machine in came:
            wrong.append(
                f"machine_rank {machine} was given on two machines, {came[machine]} and {host}: give each its own"
            )
        if hello.get("count") != self._place.count:
            wrong.append(
                f"num_machines is {self._place.count} on {self.host}, and {hello.get('count')} on {host}: give all the"
                " same"
            )
        asked = hello.get("asked")
        if None not in (asked, self._asked) and asked != self._asked:
            wrong.append(
                f"num_processes is {self._asked} on {self.host}, and {asked} on {host}: it counts the processes of all"
                " machines together, so give all the same"
            )
        if not wrong:
            came[machine] = host
            self._others.append(_Other(wire, machine, host, processes))
        return wrong

    def _look_after(self, came: dict[int, str]) -> None:
        """Gives those that wait a sign of life; one that has left may come again."""
        for one in list(self._others):
            try:
                one.wire.receive()
            except Lost:
                one.wire.close()
                self._others.remove(one)
                del came[one.machine]

    def deal(self, attempt: int, store_port: int, master_port: int) -> Share:
        """Tells each machine its ranks; those of this one."""
        self.attempt = attempt
        self.failures.clear()
        world = self._processes + sum(one.processes for one in self._others)
        first, address = self._processes, self.address
        for one in self._others:
            share = (one.machine, attempt, first, world, address, store_port, master_port)
            with suppress(Lost):  # `heard` tells
                one.wire.send({"is": "go", "share": share})
            first += one.processes
        return Share(0, attempt, 0, world, address, store_port, master_port)

    def wires(self) -> Iterator[Wire]:
        """Those to all other machines."""
        return (one.wire for one in self._others)

    def heard(self) -> Elsewhere | None:
        """What any machine has to say; the others are told."""
        found = None
        for one in list(self._others):
            try:
                said = [Elsewhere.of(message) for message in one.wire.receive("failed")]
            except (Lost, TypeError) as error:
                one.wire.close()
                self._others.remove(one)
                self.lost = True
                words = f"  the machine is gone: {error}"
                said = [Elsewhere(one.machine, one.host, words, 1, attempt=self.attempt)]
            for failed in (each for each in said if each.attempt == self.attempt):
                self.failures.append(failed)
                self.tell(failed)
                found = found or failed
        return found

    def tell(self, failed: Elsewhere) -> None:
        """Tells all others; the one that it comes from knows."""
        for one in self._others:
            if one.machine != failed.machine:
                with suppress(Lost):
                    one.wire.send(failed.message())

    def settle(self, progressed: bool, failed: bool, wait_s: float) -> bool:
        """Whether any machine got further, when all have ended their share.

        They have all time as long as nothing fails, and `wait_s` from then on.
        """
        left, until = list(self._others), inf
        while left:
            for one in left:
                with suppress(Lost):  # `heard` tells
                    for message in one.wire.receive("ended"):
                        progressed = progressed or bool(message.get("progressed"))
                        left = [other for other in left if other is not one]
            self.heard()
            left = [one for one in left if one in self._others]
            if until == inf and (failed or self.failures):
                until = time.monotonic() + wait_s
            if time.monotonic() >= until:
                for one in left:
                    one.wire.close()  # its launcher ends what is left there
                self._others = [one for one in self._others if one not in left]
                self.lost = True
                break
            time.sleep(RETRY_S / 5 if left else 0)
        return progressed

    def idle(self, seconds: float) -> None:
        """Lets time pass, with signs of life."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, RETRY_S))
            for one in self._others:
                with suppress(Lost):
                    one.wire.receive()


def _missing(came: dict[int, str], place: Place, wait_s: float) -> str:
    absent = [str(one) for one in range(place.count) if one not in came]
    there = ", ".join(f"{machine} ({host})" for machine, host in sorted(came.items()))
    return (
        f"machine {', '.join(absent)} of {place.count} did not come within {wait_s:g} s; here: machine {there}."
        f" Start accel launch there with --main_process_ip {place.host} --main_process_port {place.port}, or wait"
        " longer: --join_timeout"
    )


def address_of(place: Place, until: float = 0.0) -> str:
    """The address at which the machines meet; its name may become known until then.

    Raises: OSError where there is no machine of that name.
    """
    while True:
        try:
            found = socket.getaddrinfo(place.host, place.port, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
            break
        except socket.gaierror:
            if time.monotonic() >= until:
                raise
            time.sleep(RETRY_S)
    return str(found)


def _listen(place: Place, until: float) -> socket.socket:
    """The socket to which the others come.

    Raises: CannotRun if the place is none of this machine, or is one that only this machine can reach.
    """
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        address = address_of(place, until)
        if address.startswith("127.") and place.host != "localhost" and not place.host.startswith("127."):
            raise OSError(f"this machine takes that name for {address}, which no other can reach: give its address")
        listening.bind((address, place.port))
        listening.listen(socket.SOMAXCONN)
    except OSError as error:
        listening.close()
        raise CannotRun(
            "launch",
            [
                f"the other machines cannot be met at {place.host}:{place.port} ({error.strerror or error}):"
                " main_process_ip has to be a name or address of the machine with machine_rank 0, which is this one,"
                f" {socket.gethostname()}, and main_process_port a free port of it"
            ],
        ) from error
    return listening
