"""A connection to a store says that it is closed before a request prints a traceback of C++."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from accel_comm import store_connection
from accel_comm.status_store import StatusStore
from accel_comm.store_connection import StoreConnection
from accel_testing import stretched
from torch._C._distributed_c10d import HashStore, PrefixStore, TCPStore

SERVER = """
from torch._C._distributed_c10d import TCPStore
store = TCPStore("127.0.0.1", {port}, 1, is_master=True, wait_for_workers=False)
print("up", flush=True)
input()
"""


@pytest.fixture
def served() -> Iterator[tuple[subprocess.Popen[bytes], PrefixStore]]:
    """A process that serves a store, and a client of it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER.format(port=port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert server.stdout is not None
    server.stdout.readline()
    yield server, PrefixStore("run", TCPStore("127.0.0.1", port, 1, is_master=False, wait_for_workers=False))
    server.kill()
    server.communicate()


def test_a_store_whose_process_is_killed_is_known_to_be_gone(served: Any, capfd: pytest.CaptureFixture[str]) -> None:
    server, root = served
    connection, store = StoreConnection(root), StatusStore(root, 0)
    assert not connection.is_closed()
    store.post("note", 1)
    assert store.read("note") == 1
    server.kill()
    server.wait()
    until = time.monotonic() + stretched(10)
    while not connection.is_closed() and time.monotonic() < until:
        time.sleep(0.01)
    assert connection.is_closed()
    with pytest.raises(RuntimeError, match="its connection is closed"):
        store.read("note")
    assert capfd.readouterr().err == ""


def test_a_request_to_a_stopped_process_ends_as_do_all_later(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a request would hold its thread, and with it the end of a script, for ever."""
    monkeypatch.setattr(store_connection, "ANSWER_S", 1)
    server, root = served
    store = StatusStore(root, 0)
    store.post("note", 1)
    server.send_signal(signal.SIGSTOP)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(store.read, "note")
        time.sleep(0.2)
        second = threads.submit(store.count, "number", 1)
        with pytest.raises(RuntimeError, match="Socket Timeout"):
            first.result()
        with pytest.raises(RuntimeError, match="its connection is closed"):
            second.result()
    server.send_signal(signal.SIGCONT)
    with pytest.raises(RuntimeError, match="its connection is closed"):
        store.count("number", 1)


def test_a_default_of_the_script_does_not_end_requests(served: Any) -> None:
    """Scripts that download set it, and torch's connection waits for its answers."""
    socket.setdefaulttimeout(5.0)
    try:
        store = StatusStore(served[1], 0)
    finally:
        socket.setdefaulttimeout(None)
    assert [store.count("number", 1) for _ in range(100)] == list(range(1, 101))


def test_a_store_without_a_connection_is_never_closed() -> None:
    assert not StoreConnection(HashStore()).is_closed()
