"""Opens torch's default process group once, and closes it only when it is ours to close."""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accel_state.errors import TopologyError
from accel_state.status_store import own_host
from accel_state.topology import ACCEL_LAUNCH, LOCAL, TORCHRUN, Rendezvous, Topology

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """The options for opening the process group, if it is not open yet; None leaves an option to accel.

    `timeout` is the limit of a wait.
    """

    backend: str | None = None
    init_method: str | None = None
    timeout: timedelta | None = None

    @property
    def limit(self) -> timedelta:
        """The limit of a wait: half an hour by default."""
        return self.timeout or timedelta(minutes=30)


def limit_of_open_group() -> timedelta | None:
    """The limit of the open group; None if the group does not say."""
    import torch
    import torch.distributed as dist

    for kind in ("cpu", "cuda"):
        try:
            backend: Any = dist.group.WORLD._get_backend(torch.device(kind))  # type: ignore[union-attr] # it is open
            limit: timedelta = backend.options._timeout
        except (RuntimeError, AttributeError):
            continue
        return limit
    return None


#: torch's own limit is later than the watchdog's, which has more to say
LATER = timedelta(seconds=30)


def open_group(topology: Topology, backend: str, options: GroupOptions | None = None) -> bool:
    """True when this call opened the default group, False when it was open already.

    Raises: TopologyError when an open group contradicts the topology, or the processes have no way to meet.
    Collective: every process of the job must call.
    """
    import torch.distributed as dist

    # torch.distributed has the same name, but its type hints do not export it.
    from torch._C._distributed_c10d import PrefixStore

    atexit.register(_let_gloo_finish)
    options = options or GroupOptions()
    backend, timeout = with_cpu(options.backend or backend), options.limit + LATER
    if dist.is_initialized():
        _require_fitting_group(topology, backend)
        return False
    rank, size = topology.rank, topology.world_size
    if topology.rendezvous is None and topology.launcher == TORCHRUN:
        raise TopologyError(
            f"RANK={rank} and WORLD_SIZE={size} are set, but not where the processes meet; set MASTER_ADDR to the host"
            " of rank 0 and MASTER_PORT to a free port there, or start the script with accel launch or torchrun"
        )
    # A store may outlive a group, as that of torchrun's agent does: each group finds only its own addresses in it.
    store = PrefixStore(str(next(_openings)), _store(topology, options))
    # Without device_id=: with it NCCL connects at once, and processes that share a GPU would hear of it from NCCL, not
    # in words. Nothing guesses a device without it: barriers are gloo's, and the device of this process is current.
    dist.init_process_group(backend, store=store, timeout=timeout, rank=rank, world_size=size)
    atexit.register(_close_at_exit)
    return True


def with_cpu(backend: str) -> str:
    """The backend, with gloo beside it if it serves no tensors of the CPU, as NCCL does not."""
    import torch.distributed as dist

    kinds: list[str] = dist.Backend.backend_capability.get(backend.lower(), ["cpu"])
    return backend if "cpu" in kinds else ",".join(["cpu:gloo", *(f"{kind}:{backend.lower()}" for kind in kinds)])


def adopt(topology: Topology) -> Topology:
    """The place in an open group if the environment names none; the topology itself otherwise.

    Collective: every rank of a group that is open must call.
    """
    import torch.distributed as dist

    if topology.launcher != LOCAL or not dist.is_initialized():
        return topology
    rank, size = dist.get_rank(), dist.get_world_size()
    hosts = _told_by_all(dist.distributed_c10d._get_default_store(), "host", rank, size, own_host())
    mates = [other for other in range(size) if hosts[other] == hosts[rank]]
    return Topology(
        rank=rank,
        world_size=size,
        local_rank=mates.index(rank),
        local_world_size=len(mates),
        node_rank=list(dict.fromkeys(hosts)).index(hosts[rank]),
        launcher="the process group that is open",
    )


def _told_by_all(store: Store, what: str, rank: int, size: int, own: str) -> list[str]:
    """The words of each rank, in rank order; through the store, which needs no device.

    Collective: every rank must call.
    """
    names = [f"accel.{what}/{other}" for other in range(size)]
    store.set(names[rank], own)
    return [said.decode() for said in store.multi_get(names)]


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


def close_group() -> None:
    """Closes the default group if it is open."""
    import torch.distributed as dist

    atexit.unregister(_close_at_exit)
    if dist.is_initialized():
        dist.destroy_process_group()


def _let_gloo_finish() -> None:
    # A thread of gloo reports a collective as done before it lets go of what the collective held, for which it may need
    # the interpreter lock. When Python ends in that moment the thread is killed, and with it the process (SIGABRT), at
    # the end of every other short script. The thread waits for the lock by now: sleeping hands it over.
    time.sleep(0.02)


def _close_at_exit() -> None:
    # After an uncaught error the peers may be anywhere, and closing could wait for them for ever.
    if hasattr(sys, "last_value"):
        _abort_exchanges_of_devices()
    else:
        close_group()


def _abort_exchanges_of_devices() -> None:
    """Ends the exchanges in which devices wait: without peers, NCCL's would hold up the end of this process."""
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        return
    backends: list[Any] = []
    # also the groups that the script has opened; the newest first, as torch does it
    for group in reversed(list(dist.distributed_c10d._world.pg_names)):
        for part in dist.get_backend_config(group).split(","):
            kind, _, name = part.partition(":")
            if name != "gloo":  # the host waits for gloo's, and does so no more
                with suppress(RuntimeError):  # a group without this process
                    backends.append(group._get_backend(torch.device(kind)))
    with _together(backends):
        for backend in backends:
            with suppress(RuntimeError):  # a backend that cannot
                backend.abort()


@contextmanager
def _together(backends: list[Any]) -> Iterator[None]:
    """Lets NCCL end its communicators at once: in turn, each may wait for ranks that end another communicator."""
    import torch.distributed as dist

    of_nccl = [
        backend for backend in backends if dist.is_nccl_available() and isinstance(backend, dist.ProcessGroupNCCL)
    ]
    for backend in of_nccl[:1]:
        backend._group_start()
    yield
    for backend in of_nccl[:1]:
        backend._group_end()


def _store(topology: Topology, options: GroupOptions) -> Store:
    from torch._C._distributed_c10d import FileStore
    from torch.distributed.rendezvous import rendezvous

    place, method = topology.rendezvous, options.init_method
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


_openings = itertools.count()
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
    """A file that only the processes started by one parent on one machine agree on (mpirun without an address)."""
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
