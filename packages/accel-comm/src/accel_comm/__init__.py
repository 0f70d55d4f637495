"""Exchange data between the processes of a job, and find out which process waits for which.

Importing this package imports nothing else; the first use of a name does.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accel_comm.errors import AccelError, CollectiveMismatch, NoRun, PeerFailed, PeerLost
    from accel_comm.flight_recorder import call_site
    from accel_comm.process_group import GroupOptions
    from accel_comm.transports import Reduction, Transport

#: the modules of accel_comm, and the names that each gives
_NAMES_OF = {
    "errors": "AccelError CollectiveMismatch NoRun PeerFailed PeerLost",
    "flight_recorder": "call_site",
    "process_group": "GroupOptions",
    "transports": "Reduction Transport",
}
_MODULE_OF = {name: module for module, names in _NAMES_OF.items() for name in names.split()}

__all__ = [
    "AccelError",
    "CollectiveMismatch",
    "GroupOptions",
    "NoRun",
    "PeerFailed",
    "PeerLost",
    "Reduction",
    "Transport",
    "call_site",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'accel_comm' has no attribute {name!r}")
    return getattr(import_module(f"accel_comm.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
