"""How the first of several machines finds out who the others are: whoever comes says so, or is sent away."""

from __future__ import annotations

import errno
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from accel_state.errors import CannotRun

from accel_launch.elsewhere import VERSION
from accel_launch.link import RETRY_S, Lost, Message, Wire
from accel_launch.machines import Place
from accel_launch.waiting import LOOK_S, Waiting

#: what a machine may leave out: another one says it for all
COUNT = "num_processes"
#: seconds in which a machine that has come says who it is
HELLO_S = 5.0
#: how many may be about to say it; one more sends the oldest away
MOST_STRANGERS = 64


@dataclass(eq=False)
class Other:
    """The launcher of another machine, as the first one knows it; `leaves` where its end is none of the machine's."""

    wire: Wire
    machine: int
    host: str
    processes: int
    ended: bool = False
    leaves: bool = False


@dataclass(eq=False)
class _Stranger:
    """Somebody who has connected, and has that long to say who it is."""

    wire: Wire
    address: str
    until: float


class Gathering:
    """The launchers that have come to the first one so far, which is on `host`; `alike` is what all have to say."""

    def __init__(self, place: Place, host: str, alike: Mapping[str, object], waiting: Waiting) -> None:
        self._place, self._host, self._alike, self._waiting = place, host, alike, waiting
        self.others: list[Other] = []
        self._strangers: list[_Stranger] = []
        self._selector = selectors.DefaultSelector()

    @property
    def absent(self) -> str:
        """The numbers of the machines that have not come."""
        there = {0, *(one.machine for one in self.others)}
        return f"machine {', '.join(str(one) for one in range(self._place.count) if one not in there)}"

    def gather(self, listening: socket.socket, until: float, wait_s: float) -> list[str]:
        """Returns when all machines are there, or with what stands against it.

        Raises: Called.
        """
        listening.setblocking(False)
        problems: list[str] = []
        try:
            self._selector.register(listening, selectors.EVENT_READ)
            while not problems:
                self._look_after()
                if len(self.others) + 1 == self._place.count:
                    break
                if time.monotonic() >= until:
                    return [self._missing(wait_s)]
                self._selector.select(min(until - time.monotonic(), LOOK_S))
                self._waiting.pause(0)
                self._open(listening)
                for one in list(self._strangers):
                    problems += self._greet(one)
        finally:
            for one in self._strangers:
                one.wire.close()
            self._selector.close()
        return problems

    def _open(self, listening: socket.socket) -> None:
        """Lets in those who have come, up to as many as may be there."""
        for _ in range(MOST_STRANGERS):
            try:
                connection, (address, *_) = listening.accept()
            except BlockingIOError:
                return
            except OSError:  # it has left already; or too many files are open, which takes time
                self._waiting.pause(LOOK_S)
                return
            if len(self._strangers) >= MOST_STRANGERS:
                self._send_away(self._strangers[0])
            stranger = _Stranger(Wire(connection), str(address), time.monotonic() + HELLO_S)
            self._strangers.append(stranger)
            self._selector.register(stranger.wire, selectors.EVENT_READ)

    def _greet(self, one: _Stranger) -> list[str]:
        """Admits somebody who has said who it is, and sends away who says something else; what stands against it."""
        try:
            said = one.wire.receive("hello")
            if not said:
                if time.monotonic() >= one.until:
                    self._send_away(one)
                return []
            one.wire.receive()  # who has left meanwhile is not admitted
            self._look_after()  # and makes room for the one that came instead
            wrong = self._admit(one, said[0])
        except (Lost, KeyError, TypeError, ValueError, OverflowError):
            self._send_away(one)  # somebody else: a scan of ports, say
            return []
        if wrong:
            with suppress(Lost):
                one.wire.send({"is": "refused", "why": wrong})
            self._send_away(one)
        return wrong

    def _send_away(self, one: _Stranger) -> None:
        self._forget(one)
        one.wire.close()

    def _forget(self, one: _Stranger) -> None:
        self._selector.unregister(one.wire)
        self._strangers.remove(one)

    def _admit(self, one: _Stranger, hello: Message) -> list[str]:
        machine, processes = int(hello["machine"]), int(hello["processes"])
        host = f"{hello.get('host')} ({one.address})"
        if not 0 <= machine < int(hello["count"]) or processes < 1:
            raise ValueError(f"no launcher says that it is machine {machine} with {processes} processes")
        wrong, came = [], self._came()
        if hello.get("version") != VERSION:
            wrong.append(f"{host} runs another version of accel launch: install the same one on all machines")
        if machine in came:
            wrong.append(
                f"machine_rank {machine} was given on two machines, {came[machine]} and {host}: give each its own"
            )
        if hello.get("count") != self._place.count:
            wrong.append(
                f"num_machines is {self._place.count} on {self._host}, and {hello.get('count')} on {host}: give all"
                " the same"
            )
        alike = dict(hello.get("alike", {}))
        for name, mine in self._alike.items():
            theirs = alike.get(name)
            if theirs == mine or (name == COUNT and None in (theirs, mine)):
                continue
            why = "it counts the processes of all machines together, so give" if name == COUNT else "give"
            wrong.append(f"{name} is {mine} on {self._host}, and {theirs} on {host}: {why} all the same")
        if not wrong:
            self._forget(one)
            self.others.append(Other(one.wire, machine, host, processes))
        return wrong

    def _look_after(self) -> None:
        """Gives those that wait a sign of life; one that has left may come again."""
        for one in list(self.others):
            try:
                one.wire.receive()
            except Lost:
                one.wire.close()
                self.others.remove(one)

    def _came(self) -> dict[int, str]:
        return {0: self._host, **{one.machine: one.host for one in self.others}}

    def _missing(self, wait_s: float) -> str:
        place = self._place
        there = ", ".join(f"{machine} ({host})" for machine, host in sorted(self._came().items()))
        return (
            f"{self.absent} of {place.count} did not come within {wait_s:g} s; here: machine {there}."
            f" Start accel launch there with --main_process_ip {place.host} --main_process_port {place.port}, or wait"
            " longer: --join_timeout"
        )


def address_of(place: Place, until: float = 0.0, pause: Callable[[float], None] = time.sleep) -> str:
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
            pause(RETRY_S)
    return str(found)


def listen(place: Place, until: float, pause: Callable[[float], None]) -> socket.socket:
    """The socket to which the others come.

    Raises: CannotRun if the place is none of this machine, or is one that only this machine can reach.
    """
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        address = address_of(place, until, pause)
        if address.startswith("127.") and place.host != "localhost" and not place.host.startswith("127."):
            raise OSError(f"this machine takes that name for {address}, which no other can reach: give its address")
        listening.bind((address, place.port))
        listening.listen(socket.SOMAXCONN)
    except OSError as error:
        listening.close()
        again = ", where no other launcher has machine_rank 0" if error.errno == errno.EADDRINUSE else ""
        raise CannotRun(
            "launch",
            [
                f"the other machines cannot be met at {place.host}:{place.port} ({error.strerror or error}):"
                " main_process_ip has to be a name or address of the machine with machine_rank 0, which is this one,"
                f" {socket.gethostname()}, and main_process_port a free port of it{again}"
            ],
        ) from error
    except BaseException:
        listening.close()
        raise
    return listening
