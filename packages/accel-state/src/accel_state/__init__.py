"""Find out the rank and place of this process, and hold the run that all of its code shares.

Importing this package imports nothing else; the first use of a name does.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accel_state.accelerate_state import AcceleratorState as AcceleratorState
    from accel_state.accelerate_state import PartialState as PartialState
    from accel_state.accumulation import AccumulationState as AccumulationState
    from accel_state.accumulation import BatchPadding as BatchPadding
    from accel_state.accumulation import LoaderPass as LoaderPass
    from accel_state.accumulation import PartialWindow as PartialWindow
    from accel_state.devices import Device as Device
    from accel_state.distributed_type import DistributedType as DistributedType
    from accel_state.environments import detect as detect
    from accel_state.errors import CannotRun as CannotRun
    from accel_state.errors import RunConflict as RunConflict
    from accel_state.errors import TopologyError as TopologyError
    from accel_state.errors import UnknownName as UnknownName
    from accel_state.process_control import ProcessControl as ProcessControl
    from accel_state.registry import Registry as Registry
    from accel_state.run import Run as Run
    from accel_state.run import RunRequest as RunRequest
    from accel_state.run_context import acquire as acquire
    from accel_state.run_context import current as current
    from accel_state.run_context import is_initialized as is_initialized
    from accel_state.run_context import release as release
    from accel_state.topology import Rendezvous as Rendezvous
    from accel_state.topology import Topology as Topology

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

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'accel_state' has no attribute {name!r}")
    return getattr(import_module(f"accel_state.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
