"""Hold the facts that are settled before training starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from accel_comm.process_group import GroupOptions
from accel_comm.transports import Transport

from accel_state.data_ranks import DataRanks
from accel_state.devices import Device
from accel_state.distributed_type import DistributedType, distributed_type
from accel_state.mesh import MeshSpec
from accel_state.store_exchange import StoreExchange
from accel_state.topology import Topology

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The request of a caller for a run, where None and False say nothing and agree with every run.

    Args:
        cpu: Whether to run on the CPU.
        precision: Name of the precision.
        group: Options for opening the process group.
        mesh: Arrangement of the processes.
        renews: Whether another run may take the place of one whose process group was closed by somebody else.
    """

    cpu: bool = False
    precision: str | None = None
    group: GroupOptions = field(default_factory=GroupOptions)
    mesh: MeshSpec | None = None
    renews: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """The facts that are settled before training starts, shared by every Accelerator of the process.

    Args:
        topology: Rank of this process.
        device: Kind of hardware.
        placed_on: Device of this process.
        transport: Exchange between processes.
        precision: Name of the precision, once one was asked for.
        opened_group: Whether the run has opened the process group, and so closes it.
        asked_mesh: Arrangement of the processes, once one was asked for.
        device_mesh: torch's mesh of that arrangement.
        store: Notes of the processes, for waits beside all collectives.
        plugins: Options of strategies by the names of properties of `AcceleratorState`, of the newest Accelerator.
        forgotten: Whether the next request that asks for anything gets a run of its own.
        is_over: Function that returns whether somebody else has closed the process group of the run.
    """

    topology: Topology
    device: Device
    placed_on: torch.device
    transport: Transport
    precision: str | None = None
    opened_group: bool = False
    #: how the processes are arranged, if somebody asked for an arrangement; and torch's mesh of them
    asked_mesh: MeshSpec | None = None
    device_mesh: DeviceMesh | None = None
    store: StoreExchange = field(default_factory=StoreExchange)
    plugins: dict[str, Any] = field(default_factory=dict)
    forgotten: bool = False
    is_over: Callable[[], bool] = bool  # False: this process is alone

    def __reduce__(self) -> tuple[Callable[[], Run], tuple[()]]:
        # a copy is the run of the process that reads it
        from accel_state.run_context import current

        return current, ()

    @property
    def mesh(self) -> MeshSpec:
        """The arrangement of the processes: each trains a whole copy on samples of its own, unless asked otherwise."""
        return self.asked_mesh or MeshSpec(replicate=self.topology.world_size)

    @property
    def data_transport(self) -> Transport:
        """The exchange of samples and results, where processes that share layers or sequences count as one rank."""
        replicas = self.mesh.replicas
        return self.transport if replicas == 1 else DataRanks(self.transport, replicas)

    @property
    def distributed_type(self) -> DistributedType:
        """The kind of device of several processes, such as "MULTI_CPU", or "NO" for one process."""
        return distributed_type(self.placed_on.type, self.topology.world_size)
