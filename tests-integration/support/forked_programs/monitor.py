"""Watch a program as its parent: pass on signals from the stub, and tell the stub how the program ended."""

from __future__ import annotations

import marshal
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NoReturn

from forked_programs.forked_program import Request, run_program
from forked_programs.stub import KEPT, MOST_DESCRIPTORS


def monitor(connection: socket.socket, path: tuple[str, ...]) -> Callable[[], NoReturn]:
    """Fork the program that the stub asks for, and return it in its process.

    In the monitor this function does not return.

    Args:
        connection: Connection to the stub.
        path: `sys.path` without PYTHONPATH.
    """
    os.setsid()  # a program that signals its group reaches this process and nobody else
    request = _receive(connection)
    if problems := request.problems(path):
        connection.sendall("\n  ".join(["no such start can be forked; use a real Python:", *problems]).encode())
        os._exit(0)
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for ignored in signal.valid_signals() - KEPT:
        signal.signal(ignored, signal.SIG_IGN)  # a program may signal its group, of which this process is the leader
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pid = os.fork()
    if not pid:
        signal.set_wakeup_fd(-1)
        return partial(run_program, request, path)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    for number in request.received:
        os.close(number)
    status = _wait(pid, connection, ended)
    with suppress(OSError):  # the stub was killed
        connection.sendall(b"=%d" % status)
    os._exit(0)


def _receive(connection: socket.socket) -> Request:
    size, rights, _, _ = socket.recv_fds(connection, 8, MOST_DESCRIPTORS)
    content = bytearray()
    while len(content) < int.from_bytes(size, "big"):
        part = connection.recv(1 << 16)
        if not part:
            os._exit(0)  # the stub was killed
        content += part
    return Request(received=tuple(rights), **marshal.loads(content))


def _wait(pid: int, connection: socket.socket, ended: int) -> int:
    """Return the status of the program, which is killed if its stub or the session is gone."""
    session = sys.stdin.fileno()
    while True:
        ready, _, _ = select.select([connection, ended, session], [], [])
        if ended in ready:
            os.read(ended, 1024)
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return status
        numbers = connection.recv(1024) if connection in ready else b""
        if session in ready or (connection in ready and not numbers):
            os.kill(pid, signal.SIGKILL)
            return os.waitpid(pid, 0)[1]
        for number in numbers:
            os.kill(pid, number)
