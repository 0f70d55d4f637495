"""Who and where this process is. Importing this package does not import torch."""

from accel_state.clock import AtEpochEnd, Epoch, StepClock, Tail
from accel_state.control import ProcessControl
from accel_state.current import acquire, current, is_initialized, release, using
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
from accel_state.journal import call_site
from accel_state.process_group import GroupOptions
from accel_state.registry import Registry
from accel_state.run import Run, RunRequest
from accel_state.topology import Rendezvous, Topology
from accel_state.transports import Reduction, Transport
from accel_state.views import AcceleratorState, PartialState

__all__ = [
    "AccelError",
    "AcceleratorState",
    "AtEpochEnd",
    "CannotRun",
    "CollectiveMismatch",
    "Device",
    "DistributedType",
    "Epoch",
    "GroupOptions",
    "NoRun",
    "PartialState",
    "PeerFailed",
    "PeerLost",
    "ProcessControl",
    "Reduction",
    "Registry",
    "Rendezvous",
    "Run",
    "RunConflict",
    "RunRequest",
    "StepClock",
    "Tail",
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
