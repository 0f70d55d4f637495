"""A connection to a store says that it is closed before a request prints a traceback of C++."""

import socket
import subprocess
import sys
import time

import pytest
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


def test_a_store_whose_process_is_killed_is_known_to_be_gone(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER.format(port=port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert server.stdout is not None
    server.stdout.readline()
    root = PrefixStore("run", TCPStore("127.0.0.1", port, 1, is_master=False, wait_for_workers=False))
    connection, store = StoreConnection(root), StatusStore(root, 0)
    assert not connection.is_closed()
    store.post("note", 1)
    assert store.read("note") == 1
    server.kill()
    server.communicate()
    until = time.monotonic() + stretched(10)
    while not connection.is_closed() and time.monotonic() < until:
        time.sleep(0.01)
    assert connection.is_closed()
    with pytest.raises(RuntimeError, match="its connection is closed"):
        store.read("note")
    assert capfd.readouterr().err == ""


def test_a_store_without_a_connection_is_never_closed() -> None:
    assert not StoreConnection(HashStore()).is_closed()
