"""The place of a process among all processes of a job."""

from dataclasses import dataclass

from accel_state.errors import TopologyError

ACCEL_LAUNCH = "accel launch"
LOCAL = "local"  # nobody: a single process
TORCHRUN = "torchrun"  # or anything else that sets RANK and WORLD_SIZE


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """The address of the store where the processes of a job meet.

    Args:
        address: Host of the store.
        port: Port of the store.
        listen_fd: Descriptor of a listening socket that rank 0 has inherited.
    """

    address: str
    port: int
    listen_fd: int | None = None

    def __post_init__(self) -> None:
        if not self.address:
            raise TopologyError("the address where processes meet is empty; set MASTER_ADDR to the host of rank 0")
        if not 0 < self.port < 65536:
            raise TopologyError(f"port {self.port} cannot be used to meet: expected 1 to 65535 in MASTER_PORT")


@dataclass(frozen=True, slots=True)
class Topology:
    """The place of a process among all processes of a job.

    Args:
        rank: Rank of the process, from 0.
        world_size: Number of processes.
        local_rank: Rank of the process on its machine.
        local_world_size: Number of processes of its machine.
        node_rank: Index of its machine.
        rendezvous: Store where processes meet.
        launcher: Name of the launcher that says so.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    rendezvous: Rendezvous | None = None
    launcher: str = LOCAL

    @property
    def place(self) -> str:
        """The rank and the size in words, with the address where processes meet."""
        meeting = self.rendezvous
        return f"rank {self.rank} of {self.world_size}{f' at {meeting.address}:{meeting.port}' if meeting else ''}"

    def __post_init__(self) -> None:
        problems = []
        if self.world_size < 1:
            problems.append(f"the world has {self.world_size} processes: expected at least 1")
        elif not 0 <= self.rank < self.world_size:
            problems.append(f"rank {self.rank} of a world of {self.world_size}: expected 0 to {self.world_size - 1}")
        if not 1 <= self.local_world_size <= max(self.world_size, 1):
            problems.append(
                f"{self.local_world_size} processes on this machine in a world of {self.world_size}:"
                f" expected 1 to {self.world_size}"
            )
        elif not 0 <= self.local_rank < self.local_world_size:
            problems.append(
                f"local rank {self.local_rank} of {self.local_world_size} on this machine:"
                f" expected 0 to {self.local_world_size - 1}"
            )
        if self.node_rank < 0:
            problems.append(f"machine {self.node_rank}: expected 0 or more")
        if problems:
            raise TopologyError(f"found by {self.launcher!r}: " + "; ".join(problems))
