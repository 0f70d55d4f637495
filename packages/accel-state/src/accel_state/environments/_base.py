"""What every launcher's environment offers."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from accel_state.environ import integers
from accel_state.topology import Rendezvous, Topology


class Environment(ABC):
    """One launcher's way of telling a process who it is. Pure: the environment comes in as a mapping."""

    name: ClassVar[str]
    priority: ClassVar[int]

    @classmethod
    @abstractmethod
    def topology(cls, environ: Mapping[str, str]) -> Topology | None:
        """This launcher's topology, or None when the environment is not its own."""


def meeting_place(environ: Mapping[str, str], launcher: str) -> Rendezvous | None:
    """The store named by MASTER_ADDR and MASTER_PORT, or None when neither is set."""
    if "MASTER_ADDR" not in environ and "MASTER_PORT" not in environ:
        return None
    if "MASTER_ADDR" not in environ:
        integers(environ, ("MASTER_PORT", "MASTER_ADDR"), launcher)
    (port,) = integers(environ, ("MASTER_PORT",), launcher)
    return Rendezvous(environ["MASTER_ADDR"], port)
