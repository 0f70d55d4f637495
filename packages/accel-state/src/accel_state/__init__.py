"""Find out the rank and place of this process, and hold the run that all of its code shares.

Importing this package imports nothing else; the first use of a name does.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accel_state.accelerate_state import AcceleratorState, PartialState
    from accel_state.accumulation import AccumulationState, BatchPadding, LoaderPass, PartialWindow
    from accel_state.devices import Device
    from accel_state.distributed_type import DistributedType
    from accel_state.environments import detect
    from accel_state.errors import CannotRun, RunConflict, TopologyError, UnknownName
    from accel_state.process_control import ProcessControl
    from accel_state.registry import Registry
    from accel_state.run import Run, RunRequest
    from accel_state.run_context import acquire, current, is_initialized, release
    from accel_state.topology import Rendezvous, Topology

#: the modules of accel_state, and the names that each gives
_NAMES_OF = {
    "accumulation": "AccumulationState BatchPadding LoaderPass PartialWindow",
    "devices": "Device",
    "distributed_type": "DistributedType",
    "environments": "detect",
    "errors": "CannotRun RunConflict TopologyError UnknownName",
    "process_control": "ProcessControl",
    "registry": "Registry",
    "run": "Run RunRequest",
    "run_context": "acquire current is_initialized release",
    "topology": "Rendezvous Topology",
    "accelerate_state": "AcceleratorState PartialState",
}
_MODULE_OF = {name: module for module, names in _NAMES_OF.items() for name in names.split()}

__all__ = [
    "AcceleratorState",
    "AccumulationState",
    "BatchPadding",
    "CannotRun",
    "Device",
    "DistributedType",
    "LoaderPass",
    "PartialState",
    "PartialWindow",
    "ProcessControl",
    "Registry",
    "Rendezvous",
    "Run",
    "RunConflict",
    "RunRequest",
    "Topology",
    "TopologyError",
    "UnknownName",
    "acquire",
    "current",
    "detect",
    "is_initialized",
    "release",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'accel_state' has no attribute {name!r}")
    return getattr(import_module(f"accel_state.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
