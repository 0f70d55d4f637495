"""Exchange data between the processes of a job, and find out which process waits for which.

Importing this package imports nothing else; the first use of a name does.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accel_comm.errors import AccelError as AccelError
    from accel_comm.errors import CollectiveMismatch as CollectiveMismatch
    from accel_comm.errors import NoRun as NoRun
    from accel_comm.errors import PeerFailed as PeerFailed
    from accel_comm.errors import PeerLost as PeerLost
    from accel_comm.flight_recorder import call_site as call_site
    from accel_comm.process_group import GroupOptions as GroupOptions
    from accel_comm.transports import Reduction as Reduction
    from accel_comm.transports import Transport as Transport

#: the modules of accel_comm, and the names that each gives
_NAMES_OF = {
    "errors": "AccelError CollectiveMismatch NoRun PeerFailed PeerLost",
    "flight_recorder": "call_site",
    "process_group": "GroupOptions",
    "transports": "Reduction Transport",
}
_MODULE_OF = {name: module for module, names in _NAMES_OF.items() for name in names.split()}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'accel_comm' has no attribute {name!r}")
    return getattr(import_module(f"accel_comm.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
