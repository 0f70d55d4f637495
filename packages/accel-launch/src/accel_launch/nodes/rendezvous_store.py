"""The store at which the machines of a job meet: the first of them serves it, at the address that was given."""

from __future__ import annotations

import errno
import socket
import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

from accel_state.errors import CannotRun

from accel_launch.nodes.node_spec import NodeSpec
from accel_launch.supervise.signals import SignalSource

#: seconds between two tries to reach a machine that does not answer yet; and for one try
RETRY_S, TRY_S = 0.25, 2.0
#: seconds in which the name of the first machine has to be known, unless names come up with machines
KNOWN_S = 10.0
#: seconds for a request to the store; and between two looks for signals
REQUEST_S, LOOK_S = 10.0, 0.05


def open_store(node: NodeSpec, source: SignalSource, wait_s: float, *, serves: bool, patient: bool) -> Any:
    """torch's store, served by this machine, or by the first machine; `patient` waits for a name as for a machine.

    Raises: CannotRun if it cannot be served, or is not reached in the time; Interrupted.
    """
    until = time.monotonic() + wait_s
    if serves:
        listening = _listen(node, until if patient else 0.0, source)
        host = str(listening.getsockname()[0])
        return _tcp_store(host, node.port, is_master=True, master_listen_fd=listening.detach())
    _wait_until_reachable(node, until, wait_s, source, patient=patient)
    stores: list[Any] = []

    def connect() -> None:
        with suppress(RuntimeError):
            stores.append(_tcp_store(node.host, node.port, is_master=False))

    # torch waits for ever if another program has the port
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    while thread.is_alive() and time.monotonic() < until:
        source.pause(LOOK_S)
    if not stores:
        raise not_begun(node, wait_s)
    return stores[0]


def not_begun(node: NodeSpec, wait_s: float) -> CannotRun:
    """The error of a machine that has waited in vain for the first machine."""
    return CannotRun("launch", [f"machine 0, {node.host}, has not begun within {wait_s:g} s"])


def _tcp_store(host: str, port: int, **options: Any) -> Any:
    from torch._C._distributed_c10d import TCPStore

    options |= {"wait_for_workers": False, "timeout": timedelta(seconds=REQUEST_S)}
    try:
        return TCPStore(host, port, **options)
    except RuntimeError as error:
        if "libuv" not in str(error):
            raise
        return TCPStore(host, port, use_libuv=False, **options)  # torch was built without it


def _listen(node: NodeSpec, known_until: float, source: SignalSource) -> socket.socket:
    """The socket of the first machine, to which the others come; its name may become known until then."""
    try:
        family, address = _resolve(node, known_until, source)
        if address[0].startswith("127.") and node.host != "localhost" and not node.host.startswith("127."):
            raise OSError(f"this machine takes that name for {address[0]}, which no other can reach: give its address")
        return socket.create_server(address, family=family, backlog=socket.SOMAXCONN)
    except OSError as error:
        again = ", where no other launcher has machine_rank 0" if error.errno == errno.EADDRINUSE else ""
        why = error.strerror.partition(" (")[0] if error.strerror else error
        raise CannotRun(
            "launch",
            [
                f"the other machines cannot be met at {node.host}:{node.port} ({why}):"
                " main_process_ip has to be a name or address of the machine with machine_rank 0, which is this one,"
                f" {socket.gethostname()}, and main_process_port a free port of it{again}"
            ],
        ) from error


def _resolve(node: NodeSpec, known_until: float, source: SignalSource) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    while True:
        try:
            family, _, _, _, address = socket.getaddrinfo(node.host, node.port, type=socket.SOCK_STREAM)[0]
            return family, address
        except socket.gaierror:
            if time.monotonic() >= known_until:
                raise
            source.pause(RETRY_S)


def _wait_until_reachable(node: NodeSpec, until: float, wait_s: float, source: SignalSource, *, patient: bool) -> None:
    """Returns when the first machine answers."""
    known_until = until if patient else min(until, time.monotonic() + KNOWN_S)
    while True:
        deadline = until
        try:
            timeout = max(min(TRY_S, until - time.monotonic()), RETRY_S)
            socket.create_connection((node.host, node.port), timeout=timeout).close()
            return
        except socket.gaierror as error:
            why, deadline = f"there is no machine of that name: {error.strerror}", known_until
        except OSError as error:
            why = error.strerror or str(error)
        if time.monotonic() + RETRY_S >= deadline:
            raise CannotRun(
                "launch",
                [
                    f"machine 0 does not answer at {node.host}:{node.port} ({why}; tried for {wait_s:g} s): start"
                    " accel launch there with --machine_rank 0, and check --main_process_ip and --main_process_port"
                ],
            )
        source.pause(RETRY_S)
