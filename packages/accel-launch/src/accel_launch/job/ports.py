"""Open the two ports of a job of several processes, chosen by the system."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from accel_launch.job.plan import LOOPBACK, RendezvousInfo


@contextmanager
def reserved_ports(address: str = LOOPBACK) -> Iterator[tuple[RendezvousInfo, Callable[[int], None]]]:
    """Hold the sockets of a job for its workers.

    The store's socket listens already, so no worker can come too early. It is held until rank 0, which inherits it, has
    it. The master's port is for scripts that call `init_process_group` by themselves. Its socket is held to the end. It
    is bound with SO_REUSEADDR and never listens, so rank 0 can listen on it, and the system gives it to nobody else.

    Args:
        address: Address to listen on, IPv4 or IPv6.

    Yields:
        The rendezvous of the workers, and a function to call with each rank that has started. Once rank 0 has a copy of
        the store's socket, it closes the launcher's own: with no other copy open, peers of a dead rank 0 are refused at
        once and wait in no unread queue.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    store = socket.create_server((address, 0), family=family, backlog=socket.SOMAXCONN)
    with store, socket.socket(family) as master:
        master.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        master.bind((address, 0))

        def started(rank: int) -> None:
            if rank == 0:
                store.close()

        yield RendezvousInfo(store.getsockname()[1], store.fileno(), master.getsockname()[1], address), started
