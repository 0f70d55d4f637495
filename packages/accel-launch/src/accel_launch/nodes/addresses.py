"""The addresses by which machines reach each other: IPv4 or IPv6."""

from __future__ import annotations

import socket
from contextlib import suppress

from accel_launch.nodes.node_spec import NodeSpec


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
    names = (name for name, known in psutil.net_if_addrs().items() if any(address.address == mine for address in known))
    return next(names, "")


def is_here(host: str) -> bool:
    """Whether a name or address is one of this machine."""
    with suppress(OSError):
        family, kind, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(address)
            return True
    return False
