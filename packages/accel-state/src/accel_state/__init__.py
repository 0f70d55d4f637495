"""Who and where this process is. Importing this package imports nothing else; the first use of a name does."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accel_state.accumulation import AccumulationState, BatchPadding, LoaderPass, PartialWindow
    from accel_state.devices import Device
    from accel_state.distributed_type import DistributedType
    from accel_state.environments import detect
    from accel_state.errors import (
        AccelError,
        CannotRun,
        CollectiveMismatch,
        NoRun,
        PeerFailed,
        PeerLost,
        RunConflict,
        TopologyError,
        UnknownName,
    )
    from accel_state.flight_recorder import call_site
    from accel_state.process_control import ProcessControl
    from accel_state.process_group import GroupOptions
    from accel_state.registry import Registry
    from accel_state.run import Run, RunRequest
    from accel_state.run_context import acquire, current, is_initialized, release, using
    from accel_state.topology import Rendezvous, Topology
    from accel_state.transports import Reduction, Transport
    from accel_state.views import AcceleratorState, PartialState

_FOUND_IN = {
    "AccelError": "accel_state.errors",
    "AcceleratorState": "accel_state.views",
    "PartialWindow": "accel_state.accumulation",
    "CannotRun": "accel_state.errors",
    "CollectiveMismatch": "accel_state.errors",
    "Device": "accel_state.devices",
    "DistributedType": "accel_state.distributed_type",
    "LoaderPass": "accel_state.accumulation",
    "GroupOptions": "accel_state.process_group",
    "NoRun": "accel_state.errors",
    "PartialState": "accel_state.views",
    "PeerFailed": "accel_state.errors",
    "PeerLost": "accel_state.errors",
    "ProcessControl": "accel_state.process_control",
    "Reduction": "accel_state.transports",
    "Registry": "accel_state.registry",
    "Rendezvous": "accel_state.topology",
    "Run": "accel_state.run",
    "RunConflict": "accel_state.errors",
    "RunRequest": "accel_state.run",
    "AccumulationState": "accel_state.accumulation",
    "BatchPadding": "accel_state.accumulation",
    "Topology": "accel_state.topology",
    "TopologyError": "accel_state.errors",
    "Transport": "accel_state.transports",
    "UnknownName": "accel_state.errors",
    "acquire": "accel_state.run_context",
    "call_site": "accel_state.flight_recorder",
    "current": "accel_state.run_context",
    "detect": "accel_state.environments",
    "is_initialized": "accel_state.run_context",
    "release": "accel_state.run_context",
    "using": "accel_state.run_context",
}

__all__ = [
    "AccelError",
    "AcceleratorState",
    "AccumulationState",
    "BatchPadding",
    "CannotRun",
    "CollectiveMismatch",
    "Device",
    "DistributedType",
    "GroupOptions",
    "LoaderPass",
    "NoRun",
    "PartialState",
    "PartialWindow",
    "PeerFailed",
    "PeerLost",
    "ProcessControl",
    "Reduction",
    "Registry",
    "Rendezvous",
    "Run",
    "RunConflict",
    "RunRequest",
    "Topology",
    "TopologyError",
    "Transport",
    "UnknownName",
    "acquire",
    "call_site",
    "current",
    "detect",
    "is_initialized",
    "release",
    "using",
]


def __getattr__(name: str) -> Any:
    if name not in _FOUND_IN:
        raise AttributeError(f"module 'accel_state' has no attribute {name!r}")
    return getattr(import_module(_FOUND_IN[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
