"""Join the processes of the job: in a group that is open, or at the store where all meet."""

from __future__ import annotations

import functools
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from accel_comm.process_group import LATER, GroupOptions, open_group, with_cpu
from accel_comm.status_store import own_host

from accel_state.environ import LAZY_GLOO, set_default
from accel_state.errors import TopologyError
from accel_state.topology import ACCEL_LAUNCH, LOCAL, TORCHRUN, Rendezvous, Topology

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


#: the most ranks that gloo connects each with each. Beyond, a connection is opened when it is first used. Then a rank
#: that first calls a rank which is gone waits in vain until the watchdog ends it (pytorch/gloo#520), where an open
#: connection would say so at once
MESH_RANKS = 256


def join_group(topology: Topology, backend: str, options: GroupOptions | None = None) -> bool:
    """Open the default process group, and return whether it was not open yet.

    Args:
        topology: Rank of this process, and where processes meet.
        backend: Backend of the device.
        options: Options of the group, which may name another backend.

    Raises:
        TopologyError: If an open group contradicts the topology, or the processes have no way to meet.

    Collective:
        Every process of the job must call.
    """
    import torch.distributed as dist

    options = options or GroupOptions()
    backend = with_cpu(options.backend or backend)
    if dist.is_initialized():
        _require_fitting_group(topology, backend)
    if topology.world_size > MESH_RANKS:
        set_default(LAZY_GLOO, "1")
    open_store = functools.partial(_store, topology, options)
    return open_group(topology.rank, topology.world_size, backend, options, open_store)


def adopt(topology: Topology) -> Topology:
    """Return the topology of an open group if the environment names none, or else the given one.

    Collective:
        Every rank of a group that is open must call.
    """
    import torch.distributed as dist

    if topology.launcher != LOCAL or not dist.is_initialized():
        return topology
    rank, size = dist.get_rank(), dist.get_world_size()
    # through the store, which needs no device
    store, names = dist.distributed_c10d._get_default_store(), [f"accel.host/{other}" for other in range(size)]
    store.set(names[rank], own_host())
    hosts = store.multi_get(names)
    mates = [other for other in range(size) if hosts[other] == hosts[rank]]
    return Topology(
        rank=rank,
        world_size=size,
        local_rank=mates.index(rank),
        local_world_size=len(mates),
        node_rank=list(dict.fromkeys(hosts)).index(hosts[rank]),
        launcher="the process group that is open",
    )


def _require_fitting_group(topology: Topology, backend: str) -> None:
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    if (rank, size) != (topology.rank, topology.world_size):
        raise TopologyError(
            f"a process group is open with rank {rank} of {size}, but {topology.launcher} says rank"
            f" {topology.rank} of {topology.world_size}; open neither by hand, or both alike"
        )
    served = {part.partition(":")[0] for part in dist.get_backend_config().split(",")}
    needed = {part.partition(":")[0] for part in backend.split(",")} if ":" in backend else {"cpu"}
    if not needed <= served:
        raise TopologyError(
            f"the process group that is open serves {', '.join(sorted(served))}, and this run exchanges on"
            f" {', '.join(sorted(needed))}; open it with backend={backend!r}, or leave that to accel"
        )


def _store(topology: Topology, options: GroupOptions) -> Store:
    from torch._C._distributed_c10d import FileStore
    from torch.distributed.rendezvous import rendezvous

    place, method = topology.rendezvous, options.init_method
    if place is None and topology.launcher == TORCHRUN:
        raise TopologyError(
            f"RANK={topology.rank} and WORLD_SIZE={topology.world_size} are set, but not where the processes meet; set"
            " MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port there, or start the script with accel"
            " launch or torchrun"
        )
    if method is None and place is not None and topology.launcher != ACCEL_LAUNCH:
        address = f"[{place.address}]" if ":" in place.address else place.address
        method = f"tcp://{address}:{place.port}"
    if method is not None:
        # torch's own meeting knows whether torchrun's agent serves the store already.
        limit = options.limit + LATER
        store: Store = next(rendezvous(method, topology.rank, topology.world_size, timeout=limit))[0]
        store.set_timeout(limit)
        if topology.rank == 0:
            _served[:] = [store]
        return store
    if place is None:
        return FileStore(str(_common_file(topology)), topology.world_size)
    return _launcher_store(place, topology.rank, topology.world_size)


# Kept after its run: a rank may ask for the next run's store before rank 0 has closed this run's, and torch serves both
# from one socket while the first is there.
_served: list[Store] = []


@functools.cache  # a socket can be taken over once
def _launcher_store(place: Rendezvous, rank: int, world_size: int) -> Store:
    from torch._C._distributed_c10d import TCPStore

    listen_fd = place.listen_fd if rank == 0 else None
    opened = functools.partial(
        TCPStore, place.address, place.port, world_size, is_master=rank == 0, master_listen_fd=listen_fd
    )
    try:
        return opened()
    except RuntimeError as error:
        if "libuv" not in str(error):
            raise
        return opened(use_libuv=False)  # torch was built without it


def _common_file(topology: Topology) -> Path:
    """Return a file that only the processes of one parent on one machine agree on (mpirun without an address)."""
    if topology.local_world_size != topology.world_size:
        raise TopologyError(
            f"{topology.launcher} started {topology.world_size} processes on several machines and no address to meet at"
            " is set; set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port, on every process"
        )
    parent = os.getppid()
    started = Path(f"/proc/{parent}/stat")
    if not started.exists():
        raise TopologyError("set MASTER_ADDR and MASTER_PORT: this system does not say which processes belong together")
    # The 22nd field is the parent's start time: with it a recycled process id is told apart.
    birth = started.read_text().rpartition(")")[2].split()[19]
    folder = Path(tempfile.gettempdir()) / f"accel-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise TopologyError(f"{folder} belongs to somebody else; set MASTER_ADDR and MASTER_PORT")
    return folder / f"{parent}-{birth}.store"
