"""Open the two ports of a job of several processes, chosen by the system."""

import socket
from typing import Self

from accel_launch.job.plan import LOOPBACK, RendezvousInfo


class PortReservation:
    """The sockets that a launcher holds for its workers while their job lasts.

    The store's socket listens already, so no worker can come too early; rank 0 inherits it. The master's port is for
    scripts that call `init_process_group` by themselves. It is bound with SO_REUSEADDR and never listens, so rank 0 can
    listen on it, and the system gives it to nobody else.

    Args:
        address: Address to listen on, IPv4 or IPv6.
    """

    def __init__(self, address: str = LOOPBACK) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._store = socket.create_server((address, 0), family=family, backlog=socket.SOMAXCONN)
        self._address, self._master = address, socket.socket(family)

    def __enter__(self) -> Self:
        try:
            self._master.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._master.bind((self._address, 0))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._store.close()
        self._master.close()

    @property
    def meeting(self) -> RendezvousInfo:
        """The rendezvous of the workers, valid until `handed_over`."""
        return RendezvousInfo(
            store_port=self._store.getsockname()[1],
            store_fd=self._store.fileno(),
            master_port=self._master.getsockname()[1],
            address=self._address,
        )

    def handed_over(self, rank: int) -> None:
        """Close the launcher's own copy of the store's socket once rank 0 has a copy.

        With no other copy open, peers of a dead rank 0 are refused at once and wait in no unread queue.
        """
        if rank == 0:
            self._store.close()
