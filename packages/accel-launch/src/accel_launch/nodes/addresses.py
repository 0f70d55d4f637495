"""The addresses by which machines reach each other: IPv4 or IPv6."""

from __future__ import annotations

import socket

from accel_launch.nodes.node_spec import NodeSpec


def address_of(node: NodeSpec) -> str:
    """Return the address of the first machine, or its name if the address is unknown here."""
    try:
        return str(socket.getaddrinfo(node.host, node.port, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return node.host


def address_towards(node: NodeSpec) -> str:
    """Return the address by which the first machine sees this machine, or "" if no way leads there."""
    try:
        family, _, _, _, address = socket.getaddrinfo(node.host, node.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # of datagrams: nothing is sent
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def interface_towards(node: NodeSpec) -> str:
    """Return the network interface of this machine towards the first machine, or "" if it has no name."""
    import psutil

    mine = address_towards(node)
    names = (name for name, known in psutil.net_if_addrs().items() if any(address.address == mine for address in known))
    return next(names, "")


def is_first(node: NodeSpec) -> bool:
    """Return True if this machine has the address at which all meet."""
    address = address_of(node)
    return address.startswith("127.") or address == address_towards(node)
