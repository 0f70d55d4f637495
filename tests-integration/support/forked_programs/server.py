"""Import modules once, and fork a monitor for each program that a stub asks for."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from accel_testing.cheap_forks import prepare_forks

from forked_programs.monitor import monitor

#: DDP's first use imports torch._dynamo, FSDP2's torch.distributed.fsdp: seconds in each program
PRELOAD = ("torch", "torch._dynamo", "torch.distributed.fsdp", "torch.nn.parallel")


def main(folder: str, path: Sequence[str], preload: Sequence[str]) -> None:
    """Serve stubs until the standard input ends. In a forked process, run the program instead.

    Args:
        folder: Folder for the socket, and for the file that says that the server is ready.
        path: `sys.path` of programs without PYTHONPATH.
        preload: Modules to import besides torch.
    """
    environ = dict(os.environ)
    for name in [*PRELOAD, *preload]:
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            print(f"not imported before the fork: {name}: {error}")  # a program that needs it fails itself
    os.environ.clear()
    os.environ.update(environ)  # as libraries change it while they are imported
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(os.path.join(folder, "socket"))
    listening.listen(128)
    prepare_forks()
    Path(folder, "ready").touch()
    program = _serve(listening, tuple(path))
    if program is not None:
        program()


def _serve(listening: socket.socket, path: tuple[str, ...]) -> Callable[[], NoReturn] | None:
    """Return the program in its process, or None in the server once its session has ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a monitor has ended
    while True:
        ready, _, _ = select.select([listening, sys.stdin.fileno()], [], [])
        if sys.stdin.fileno() in ready:
            return None
        connection, _ = listening.accept()
        if os.fork():
            connection.close()
            continue
        listening.close()
        return monitor(connection, path)


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
