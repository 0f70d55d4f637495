"""The addresses by which machines reach each other: IPv4 or IPv6."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from accel_state.errors import CannotRun

from accel_launch.nodes.node_spec import NodeSpec

#: seconds between two tries to reach a machine that does not answer yet; and for one try
RETRY_S, TRY_S = 0.25, 2.0
#: seconds in which the name of the first machine has to be known, unless names come up with machines
KNOWN_S = 10.0


def address_towards(host: str, port: int) -> str:
    """The address by which another machine sees this one; nothing if no way leads there."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # of datagrams: nothing is sent
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def address_of(node: NodeSpec) -> str:
    """The address of the first machine; its name if the address is not known here."""
    try:
        return str(socket.getaddrinfo(node.host, node.port, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return node.host


def interface_towards(host: str, port: int) -> str:
    """The network interface of this machine through which it reaches another; nothing if none is known by name."""
    import psutil

    mine = address_towards(host, port)
    names = (name for name, found in psutil.net_if_addrs().items() if any(one.address == mine for one in found))
    return next(names, "")


def is_here(host: str) -> bool:
    """Whether a name or address is one of this machine."""
    with suppress(OSError):
        family, kind, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(address)
            return True
    return False


def listen(node: NodeSpec, known_until: float, pause: Callable[[float], None]) -> socket.socket:
    """The socket of the first machine, to which the others come; its name may become known until then.

    Raises: CannotRun if the address is none of this machine, or one that only this machine can reach.
    """
    try:
        while True:
            try:
                family, kind, _, _, address = socket.getaddrinfo(node.host, node.port, type=socket.SOCK_STREAM)[0]
                break
            except socket.gaierror:
                if time.monotonic() >= known_until:
                    raise
                pause(RETRY_S)
        local = str(address[0])
        if local.startswith("127.") and node.host != "localhost" and not node.host.startswith("127."):
            raise OSError(f"this machine takes that name for {local}, which no other can reach: give its address")
        listening = socket.socket(family, kind)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(socket.SOMAXCONN)
        except OSError:
            listening.close()
            raise
        return listening
    except OSError as error:
        again = ", where no other launcher has machine_rank 0" if error.errno == errno.EADDRINUSE else ""
        raise CannotRun(
            "launch",
            [
                f"the other machines cannot be met at {node.host}:{node.port} ({error.strerror or error}):"
                " main_process_ip has to be a name or address of the machine with machine_rank 0, which is this one,"
                f" {socket.gethostname()}, and main_process_port a free port of it{again}"
            ],
        ) from error


def wait_until_reachable(
    node: NodeSpec, until: float, wait_s: float, pause: Callable[[float], None], *, patient: bool
) -> None:
    """Returns when the first machine answers.

    Raises: CannotRun if it does not until then, or if its name is not known for some time, unless `patient`.
    """
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
        pause(RETRY_S)
