"""Open torch's default process group once, and close it only if it was opened here."""

from __future__ import annotations

import atexit
import logging
import resource
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

logger = logging.getLogger("accel")

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """The options for opening the process group, if it is not open yet.

    None leaves an option to accel.

    Args:
        backend: Backend of `torch.distributed`.
        init_method: URL at which processes meet.
        timeout: Limit of a wait.
    """

    backend: str | None = None
    init_method: str | None = None
    timeout: timedelta | None = None

    @property
    def limit(self) -> timedelta:
        """The limit of a wait: half an hour by default."""
        return self.timeout or timedelta(minutes=30)


def limit_of_open_group() -> timedelta | None:
    """Return the limit of a wait in the open group, or None if the group does not say."""
    import torch
    import torch.distributed as dist

    for kind in ("cpu", "cuda"):
        with suppress(RuntimeError, AttributeError):
            backend: Any = dist.group.WORLD._get_backend(torch.device(kind))  # type: ignore[union-attr] # it is open
            limit: timedelta = backend.options._timeout
            return limit
    return None


#: the open files that the group may need for each rank, and those that are left to all else
FILES_A_RANK, SPARE_FILES = 4, 256
#: torch's own limit is later than the watchdog's, which has more to say
LATER = timedelta(seconds=30)


def open_group(rank: int, size: int, backend: str, options: GroupOptions, open_store: Callable[[], Store]) -> bool:
    """Open the default group, and return whether it was not open yet.

    Args:
        rank: Rank of this process.
        size: Number of processes.
        backend: Backend for each type of device, as `with_cpu` returns it.
        options: Options, of which `timeout` counts here.
        open_store: Function that returns the store in which processes meet.

    Collective:
        Every process of the job must call.
    """
    import torch.distributed as dist

    # torch.distributed has the same name, but its type hints do not export it.
    from torch._C._distributed_c10d import PrefixStore

    atexit.register(_let_gloo_finish)
    allow_open_files(rank, size)
    if dist.is_initialized():
        return False
    # A store may outlive a group, as that of torchrun's agent does: each group finds only its own addresses in it.
    bare = open_store()
    # counted for each size: of ranks that run again beside new ones each has to count the same
    store = PrefixStore(f"{size}/{count_in(bare, f'groups of {size}', rank)}", bare)
    # Without device_id=: with it NCCL connects at once, and processes that share a GPU would hear of it from NCCL, not
    # in words. Nothing guesses a device without it: barriers are gloo's, and the device of this process is current.
    dist.init_process_group(backend, store=store, timeout=options.limit + LATER, rank=rank, world_size=size)
    atexit.register(_close_at_exit)
    return True


def count_in(store: Store, what: str, rank: int) -> int:
    """Return how often a rank has counted something in a store before.

    The store counts, and not the process: an engine may put a new process beside those that have run before.

    Args:
        store: The store of a job.
        what: Name of what is counted.
        rank: Rank of this process.
    """
    return store.add(f"accel.{what}/{rank}", 1) - 1


def allow_open_files(rank: int, size: int) -> None:
    """Raise the limit of open files to the highest allowed if the group may need more, and warn if that is too low.

    Rank 0 serves the store to two connections of each rank, and gloo connects each rank with each.

    Args:
        rank: Rank of this process.
        size: Number of processes.
    """
    needed = SPARE_FILES + FILES_A_RANK * size
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = needed if most == resource.RLIM_INFINITY else min(needed, most)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    with suppress(ValueError, OSError):  # a system may have limits of its own
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))
    if allowed < needed and rank == 0:
        logger.warning(
            "a process may have %s open files here, and a job of %s processes may need %s: raise the hard limit"
            " (`ulimit -Hn`, LimitNOFILE= of the service that starts jobs, or nofile in limits.conf)",
            *(most, size, needed),
        )


def with_cpu(backend: str) -> str:
    """Return the backend, with gloo beside it if it serves no tensors of the CPU, as NCCL does not."""
    import torch.distributed as dist

    kinds: list[str] = dist.Backend.backend_capability.get(backend.lower(), ["cpu"])
    return backend if "cpu" in kinds else ",".join(["cpu:gloo", *(f"{kind}:{backend.lower()}" for kind in kinds)])


def close_group() -> None:
    """Close the default group if it is open."""
    import torch.distributed as dist

    atexit.unregister(_close_at_exit)
    if dist.is_initialized():
        dist.destroy_process_group()


def end_of_group() -> Callable[[], bool]:
    """Return a function that returns whether the default group, which is open now, was closed since."""
    import torch.distributed as dist

    # another may be the default one for a while
    group, known = weakref.ref(dist.distributed_c10d._get_default_group()), dist.distributed_c10d._world
    return lambda: group() not in known.pg_map


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
    """End the exchanges in which devices wait: without peers, NCCL's would hold up the end of this process."""
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
    # NCCL ends its communicators at once: in turn, each may wait for ranks that end another communicator
    of_nccl = [one for one in backends if isinstance(one, vars(dist).get("ProcessGroupNCCL", ()))][:1]
    for backend in of_nccl:
        backend._group_start()
    for backend in backends:
        with suppress(RuntimeError):  # a backend that cannot
            backend.abort()
    for backend in of_nccl:
        backend._group_end()
