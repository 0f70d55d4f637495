"""The interface of every launcher's environment."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from accel_state.environ import half_set, integers
from accel_state.errors import TopologyError
from accel_state.topology import Rendezvous, Topology


class Environment(ABC):
    """The way in which a launcher tells a process its rank. Pure: the environment comes in as a mapping."""

    priority: ClassVar[int]

    @classmethod
    @abstractmethod
    def topology(cls, environ: Mapping[str, str]) -> Topology | None:
        """Return this launcher's topology, or None if the environment is not its own."""


def environ_rendezvous(environ: Mapping[str, str], launcher: str) -> Rendezvous | None:
    """Return the store named by MASTER_ADDR and MASTER_PORT, or None if neither is set.

    Args:
        environ: The environment.
        launcher: Name of the launcher, for error messages.

    Raises:
        TopologyError: If only one variable is set, or the port is no port.
    """
    names = ("MASTER_ADDR", "MASTER_PORT")
    given = [name in environ for name in names]
    if not any(given):
        return None
    if not all(given):
        raise TopologyError(
            f"{half_set(environ, names, launcher)}. Set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free"
            " port there, on every process"
        )
    (port,) = integers(environ, ("MASTER_PORT",), launcher)
    return Rendezvous(environ["MASTER_ADDR"], port)
