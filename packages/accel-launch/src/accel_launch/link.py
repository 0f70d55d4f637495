"""What the launchers of several machines tell each other: lines of JSON, by which each also hears that one is gone."""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, final

#: seconds between two signs of life, and without any after which the other one counts as lost
BEAT_S, SILENCE_S = 2.0, 15.0
#: bytes of a message: whoever sends more is no launcher
LONGEST = 1 << 20
#: seconds between two tries to reach a machine that does not answer yet
RETRY_S = 0.25
#: seconds for one try; a signal to the launcher waits for its end
TRY_S = 2.0

Message = Mapping[str, Any]


class Lost(Exception):
    """The other end is gone; the words say how that was noticed."""


@final
class Wire:
    """A connection to the launcher of another machine; nothing here waits but `expect`."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        with suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._came, self._goes = bytearray(), bytearray()
        self._unread: list[Message] = []
        self._heard = self._beat = time.monotonic()

    def fileno(self) -> int:
        """The descriptor of the connection, for a selector."""
        return self._connection.fileno()

    def send(self, message: Message) -> None:
        """Sends a message, as far as the way is free; `receive` goes on with the rest.

        Raises: Lost.
        """
        self._goes += json.dumps(message).encode() + b"\n"
        self._flush()

    def beat(self) -> None:
        """Sends a sign of life."""
        self._beat = time.monotonic()
        with suppress(Lost):  # what it has said is still to be read
            self.send({"is": "beat"})

    def receive(self, *kinds: str) -> list[Message]:
        """What has come of these kinds; a sign of life is sent, and one of the other end expected.

        Raises: Lost, after all that came before was given.
        """
        now, ended = time.monotonic(), ""
        if now - self._beat >= BEAT_S:
            self.beat()
        try:
            while True:
                chunk = self._connection.recv(1 << 16)
                if not chunk:
                    ended = "its launcher has ended"
                    break
                self._heard = now
                self._came += chunk
                if len(self._came) > LONGEST:
                    break  # whoever sends faster than this reads ends at `_messages`
        except BlockingIOError:
            pass
        except OSError as error:
            ended = f"the connection broke: {error.strerror or error}"
        self._unread += [one for one in self._messages() if one.get("is") != "beat"]
        found = [one for one in self._unread if one.get("is") in kinds]
        self._unread = [one for one in self._unread if one.get("is") not in kinds]
        if not found and ended:
            raise Lost(ended)
        if not found and now - self._heard > SILENCE_S:
            raise Lost(f"nothing was heard of it for {SILENCE_S:g} s")
        return found

    def expect(self, kind: str, until: float) -> Message | None:
        """The next message of a kind, at the latest at that time.

        Raises: Lost.
        """
        while True:
            for message in self.receive(kind):
                return message
            if time.monotonic() >= until:
                return None
            with selectors.DefaultSelector() as selector:
                selector.register(self._connection, selectors.EVENT_READ)
                selector.select(min(BEAT_S / 2, max(until - time.monotonic(), 0)))

    def close(self) -> None:
        """Ends the connection, after what was sent is on its way."""
        with suppress(OSError, Lost):
            self._connection.settimeout(1)
            self._connection.sendall(self._goes)
        self._connection.close()

    def _flush(self) -> None:
        try:
            while self._goes:
                del self._goes[: self._connection.send(self._goes)]
        except BlockingIOError:
            return
        except OSError as error:
            raise Lost(f"the connection broke: {error.strerror or error}") from error

    def _messages(self) -> Iterator[Message]:
        with suppress(Lost):
            self._flush()
        while (end := self._came.find(b"\n")) >= 0:
            line = bytes(self._came[:end])
            del self._came[: end + 1]
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                found = None
            if not isinstance(found, dict):
                raise Lost("what came is of no accel launch")
            yield found
        if len(self._came) > LONGEST:
            raise Lost("what came is of no accel launch")


def reach(
    host: str, port: int, until: float, known_until: float, pause: Callable[[float], None] = time.sleep
) -> Wire | str:
    """A connection to the launcher there; why there is none, where none came until that time.

    The name of the machine has to be known until `known_until`. Between two tries is a `pause`.
    """
    why = ""
    while True:
        try:
            return Wire(
                socket.create_connection((host, port), timeout=max(min(TRY_S, until - time.monotonic()), RETRY_S))
            )
        except socket.gaierror as error:
            why = f"there is no machine of that name: {error.strerror}"
            if time.monotonic() + RETRY_S >= known_until:
                return why
        except OSError as error:
            why = error.strerror or str(error)
        if time.monotonic() + RETRY_S >= until:
            return why
        pause(RETRY_S)


def address_towards(host: str, port: int) -> str:
    """The address by which another machine sees this one; nothing where no way leads there."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # of datagrams: nothing is sent
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def interface_towards(host: str, port: int) -> str:
    """The network interface of this machine through which it reaches another; nothing where none is known by name."""
    mine = address_towards(host, port)
    return next((name for name, one in _addresses() if one == mine), "")


def _addresses() -> Iterator[tuple[str, str]]:
    """The interfaces of this machine with their addresses."""
    import fcntl
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_one:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has none
                # <linux/sockios.h> SIOCGIFADDR
                answer = fcntl.ioctl(any_one.fileno(), 0x8915, struct.pack("256s", name.encode()[:15]))
                yield name, socket.inet_ntoa(answer[20:24])
