"""What launchers of several machines tell each other arrives whole or the other end counts as lost, whoever it is."""

import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import cast

import pytest
from accel_launch import link
from accel_launch.elsewhere import Elsewhere
from accel_launch.joined import Joined
from accel_launch.link import LONGEST, Lost, Wire, address_towards, interface_towards, reach
from accel_launch.machines import Place
from accel_state.errors import CannotRun

Ends = tuple[Wire, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """A wire and the bare socket at its other end."""
    mine, other = socket.socketpair()
    wire = Wire(mine)
    yield wire, other
    wire.close()
    other.close()


@pytest.fixture
def wires() -> Iterator[tuple[Wire, Wire]]:
    one, two = map(Wire, socket.socketpair())
    yield one, two
    one.close()
    two.close()


def soon(seconds: float = 60) -> float:
    return time.monotonic() + seconds


def test_messages_arrive_in_order_and_those_of_other_kinds_wait(wires: tuple[Wire, Wire]) -> None:
    here, there = wires
    for number in range(3):
        here.send({"is": "a", "n": number})
        here.send({"is": "b", "n": number})
    assert [one["n"] for one in there.receive("b")] == [0, 1, 2]
    assert there.receive("b") == []
    assert there.receive("a", "b") == [{"is": "a", "n": number} for number in range(3)]


def test_a_line_that_comes_in_pieces_is_one_message(ends: Ends) -> None:
    wire, other = ends
    line = json.dumps({"is": "a", "words": "ünicode"}, ensure_ascii=False).encode() + b'\n{"is": "a"'
    for byte in line:
        other.send(bytes([byte]))
        found = wire.receive("a")
        if found:
            assert found == [{"is": "a", "words": "ünicode"}]
            assert byte == ord("\n")
    assert wire.receive("a") == []
    other.send(b"}\n")
    assert wire.receive("a") == [{"is": "a"}]


def test_a_message_that_fills_the_way_arrives_when_it_is_free(wires: tuple[Wire, Wire]) -> None:
    """A cause of 30 long lines, say; nobody waits for it."""
    here, there = wires
    here.send({"is": "a", "words": "x" * (LONGEST - 100)})
    until, found = soon(), there.receive("a")
    while not found and time.monotonic() < until:
        here.receive()
        found = there.receive("a")
    assert [len(one["words"]) for one in found] == [LONGEST - 100]


def test_what_is_sent_last_arrives_before_the_end(wires: tuple[Wire, Wire]) -> None:
    here, there = wires
    here.send({"is": "over"})
    here.close()
    assert there.receive("over") == [{"is": "over"}]
    with pytest.raises(Lost, match="its launcher has ended"):
        there.receive("over")


def test_what_has_not_been_asked_for_yet_is_given_after_the_end(wires: tuple[Wire, Wire]) -> None:
    here, there = wires
    here.send({"is": "failed"})
    here.send({"is": "over"})
    here.close()
    assert there.receive("over") == [{"is": "over"}]
    assert there.receive("failed") == [{"is": "failed"}]
    with pytest.raises(Lost):
        there.receive("over", "failed")


def test_a_connection_that_breaks_is_lost() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        other = socket.create_connection(server.getsockname())
        wire = Wire(server.accept()[0])
    other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # its end is a reset
    other.close()
    with pytest.raises(Lost, match="the connection broke: Connection reset by peer"):
        wire.expect("a", soon())
    with pytest.raises(Lost, match="the connection broke"):
        wire.send({"is": "a"})
    wire.close()


def test_a_wire_that_is_silent_is_lost_and_one_with_signs_of_life_is_not(
    wires: tuple[Wire, Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cable that is pulled, or a machine without power: nothing says that the other end is gone."""
    monkeypatch.setattr(link, "SILENCE_S", 0.4)
    monkeypatch.setattr(link, "BEAT_S", 0.05)
    here, there = wires
    until = soon(1.2)
    while time.monotonic() < until:
        assert here.receive("a") == there.receive("a") == []
        time.sleep(0.02)
    with pytest.raises(Lost, match=r"nothing was heard of it for 0\.4 s"):
        here.expect("a", soon())


def test_waiting_for_a_message_has_an_end(wires: tuple[Wire, Wire]) -> None:
    assert wires[0].expect("a", soon(0.05)) is None


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x16\x03\x01\x02\x00\n",
        b"\xff\xfe\n",
        b"\n",
        b"[1]\n",
        b"7\n",
        b"null\n",
        b'"hello"\n',
        b"[" * 500_000 + b"\n",
        b'{"is":' * 100_000 + b"\n",
        b"9" * 10_000 + b"\n",
        b"x" * 2 * LONGEST,
    ],
    ids=lambda said: repr(said[:12]),
)
def test_whoever_speaks_another_language_is_lost(said: bytes, ends: Ends) -> None:
    wire, other = ends

    def speak() -> None:
        with suppress(OSError):  # nobody listens any more
            other.sendall(said)

    thread = threading.Thread(target=speak)
    thread.start()
    with pytest.raises(Lost, match="what came is of no accel launch"):
        wire.expect("hello", soon())
    wire.close()
    other.close()
    thread.join()


class Endless:
    """A connection on which more comes as fast as it is read."""

    def __init__(self) -> None:
        self.read = 0

    def setblocking(self, flag: bool) -> None: ...

    def setsockopt(self, *option: int) -> None: ...

    def recv(self, size: int) -> bytes:
        self.read += size
        assert self.read < 100 * LONGEST
        return b"x" * size


def test_whoever_never_stops_speaking_is_lost() -> None:
    with pytest.raises(Lost, match="what came is of no accel launch"):
        Wire(cast(socket.socket, Endless())).receive("hello")


def test_half_a_line_is_no_message(ends: Ends) -> None:
    wire, other = ends
    other.send(b'{"is": "hello"')
    assert wire.expect("hello", soon(0.1)) is None
    other.close()
    with pytest.raises(Lost, match="its launcher has ended"):
        wire.expect("hello", soon())


def test_a_message_of_a_kind_that_is_no_word_is_left_alone(ends: Ends) -> None:
    wire, other = ends
    other.send(b'{"is": ["hello"]}\n{"is": {}}\n{}\n{"is": "hello"}\n')
    assert wire.receive("hello") == [{"is": "hello"}]


def test_a_failure_is_told_as_it_is() -> None:
    failed = Elsewhere(3, "gpu3", "words\nof ünicode", 137, "Traceback", 2, attempt=4)
    assert Elsewhere.of(json.loads(json.dumps(failed.message()))) == failed


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_a_machine_that_begins_to_listen_later_is_reached() -> None:
    port = free_port()
    found: list[Wire | str] = []
    thread = threading.Thread(target=lambda: found.append(reach("127.0.0.1", port, soon(20), soon(20))))
    thread.start()
    time.sleep(0.6)
    with socket.create_server(("127.0.0.1", port)) as server:
        thread.join()
        server.accept()[0].close()
    assert isinstance(found[0], Wire)
    found[0].close()


def test_nobody_at_a_port_is_said() -> None:
    assert reach("127.0.0.1", free_port(), soon(0.4), soon(0.4)) == "Connection refused"


def test_a_name_that_is_not_known_is_not_waited_for_as_long_as_a_machine() -> None:
    why = reach("no-such-machine.invalid", 1, soon(600), soon(0.1))
    assert isinstance(why, str)
    assert why.startswith("there is no machine of that name: ")


def test_the_way_to_this_machine_is_its_loopback() -> None:
    assert address_towards("127.0.0.1", 9) == "127.0.0.1"
    assert interface_towards("127.0.0.1", 9) in ("lo", "lo0")
    assert address_towards("no-such-machine.invalid", 9) == ""


@pytest.mark.parametrize(
    "said",
    [
        {"is": "refused"},
        {"is": "refused", "why": 7},
        {"is": "refused", "why": []},
        {"is": "go"},
        {"is": "go", "share": None},
        {"is": "go", "share": [1, 0, 0, 2, "127.0.0.1", 1]},
        {"is": "go", "share": ["1", 0, 0, 2, "127.0.0.1", 1, 2]},
    ],
)
def test_a_message_without_what_belongs_to_it_is_of_no_launcher(said: dict[str, object], ends: Ends) -> None:
    wire, other = ends
    with Joined(Place(1, 2, "h0", 1), 1) as joined:
        joined._wire = wire
        other.send(json.dumps(said).encode() + b"\n")
        with pytest.raises(CannotRun, match="machine 0, h0, is gone: no launcher "):
            joined.wait(60)
