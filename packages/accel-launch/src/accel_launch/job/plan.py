"""Turn settings into the processes to start: their commands and environments. Nothing is started here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from accel_state.environ import (
    ATTEMPT,
    FLIGHT_RECORDER,
    JOBS,
    STORE_FD,
    STORE_PORT,
    worker_environ,
)
from accel_state.errors import CannotRun
from accel_state.topology import ACCEL_LAUNCH, Rendezvous, Topology
from click.core import ParameterSource

from accel_launch.cli.option_types import as_text
from accel_launch.cli.options import BY_NAME, LaunchSettings

LOOPBACK = "127.0.0.1"
#: settings that a script reads, and that are the same for all of its processes
SHARED_SETTINGS = (
    "mixed_precision",
    "gradient_accumulation_steps",
    "use_fsdp",
    "fsdp_config",
    "use_deepspeed",
    "deepspeed_config",
    "parallelism_config",
    "dynamo_config",
    "memory_checkpoint_every",
)
#: settings that a process finds in its environment
PROCESS_SETTINGS = ("cpu", "as_accelerate", *SHARED_SETTINGS)

# What torchrun, mpirun and srun set in each process they start: a variable, and the number of processes.
_RANKS = ("RANK", "WORLD_SIZE")
_STARTED_BY = (
    _RANKS,
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


@dataclass(frozen=True, slots=True)
class HostInfo:
    """The facts of this machine that the plan needs.

    Args:
        cores: Number of cores.
        accelerators: Number of accelerators.
        loopback_interface: Network interface of 127.0.0.1.
    """

    cores: int
    accelerators: int
    loopback_interface: str = "lo"


@dataclass(frozen=True, slots=True)
class RendezvousInfo:
    """The store at which the processes of a job meet, and the ranks of this machine.

    Args:
        store_port: Port of the store.
        store_fd: Descriptor on which rank 0 opens the store; None on machines without rank 0.
        master_port: Port for scripts that open a process group by themselves.
        address: Address of both ports.
        interface: Network interface for processes of several machines; empty leaves it to them.
        machine: Rank of this machine.
        first: Rank of the first process of this machine.
        world: Number of processes on all machines. Default: those of this machine.
    """

    store_port: int
    store_fd: int | None
    master_port: int
    address: str = LOOPBACK
    interface: str = ""
    machine: int = 0
    first: int = 0
    world: int | None = None


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A process to start.

    Args:
        command: Program and arguments.
        environ: Environment.
        descriptors: Open files that it inherits.
        rank: Its rank.
        cores: Cores to bind it to; empty binds it to none.
    """

    command: tuple[str, ...]
    environ: Mapping[str, str]
    descriptors: tuple[int, ...] = ()
    rank: int = 0
    cores: tuple[int, ...] = ()


def place_told(environ: Mapping[str, str]) -> dict[str, str] | None:
    """Return the variables of rank and world size that another launcher has set, in this order, or None."""
    for rank, size in _STARTED_BY:
        if rank in environ and size in environ and (rank != "SLURM_PROCID" or environ[size] != "1"):
            return {rank: environ[rank], size: environ[size]}
    return None


def words_of(place: Mapping[str, str]) -> str:
    """Return the values of such variables in words."""
    return ", ".join(f"{name}={value}" for name, value in place.items())


def count_processes(settings: LaunchSettings, environ: Mapping[str, str], host: HostInfo, *, machines: int = 1) -> int:
    """Return the number of processes to start on this machine.

    Args:
        settings: Settings of the launch.
        environ: Environment of the launcher.
        host: This machine.
        machines: Number of machines that take part.

    Raises:
        CannotRun: Another launcher has started this launcher, or there are not enough accelerators.
    """
    asked, place = settings.num_processes, place_told(environ)
    if place is not None and (machines == 1 or "SLURM_PROCID" not in place):
        started = f"another launcher has started this one already ({words_of(place)})"
        if machines > 1:
            raise CannotRun("launch", [f"{machines} machines were asked for, but {started}"])
        if asked is not None and asked > 1 and settings.is_flag("num_processes"):
            raise CannotRun(
                "launch",
                [
                    f"{asked} processes were asked for, but {started}: choose one of the two; leave out"
                    " --num_processes, or start accel launch by itself"
                ],
            )
        return 1
    here = asked // machines if asked is not None else None
    chosen = settings.gpu_ids if settings.gpu_ids != "all" else None
    if settings.cpu:
        if chosen and settings.is_flag("cpu") and settings.is_flag("gpu_ids"):
            raise CannotRun("launch", [f"--cpu and --gpu_ids {chosen} contradict each other: give one of the two"])
        return here or 1
    if chosen and host.accelerators == 0:
        raise CannotRun("launch", [f"gpu_ids {chosen} was asked for, but no GPU was found; leave it out, or add --cpu"])
    visible = len(chosen.split(",")) if chosen else host.accelerators
    if host.accelerators and here is not None and here > visible:
        named = f"gpu_ids {chosen} names {visible}" if chosen else f"{visible} can be seen"
        raise CannotRun(
            "launch",
            [
                f"{here} processes were asked for, each with a GPU of its own, but {named}: ask for {visible} or"
                " fewer, or add --cpu"
            ],
        )
    return here or visible or 1


def plan_one(settings: LaunchSettings, command: Sequence[str], environ: Mapping[str, str]) -> ProcessSpec:
    """Return a single process. Its environment has the settings, and no variables of ranks.

    Variables of a store are kept beside a rank. Without a rank they are left over from another job.

    Args:
        settings: Settings of the launch.
        command: Program and arguments.
        environ: Environment of the launcher.
    """
    inherited = environ if all(name in environ for name in _RANKS) else _without_store(environ)
    # OMP_NUM_THREADS beats a config file, but no flag and no variable of accel's
    from_file = settings.origin("num_cpu_threads_per_process") is ParameterSource.DEFAULT_MAP
    threads = (from_file and environ.get("OMP_NUM_THREADS")) or settings.num_cpu_threads_per_process
    said = {
        **{BY_NAME[name].envvar: getattr(settings, name) for name in PROCESS_SETTINGS if settings.said(name)},
        "CUDA_VISIBLE_DEVICES": None if settings.cpu or settings.gpu_ids == "all" else settings.gpu_ids,
        "OMP_NUM_THREADS": threads,
    }
    variables = {
        name: as_text(int(value) if isinstance(value, bool) else value)
        for name, value in said.items()
        if value is not None
    }
    return ProcessSpec(tuple(command), {**inherited, **variables})


def plan_many(
    settings: LaunchSettings,
    command: Sequence[str],
    environ: Mapping[str, str],
    *,
    count: int,
    host: HostInfo,
    meeting: RendezvousInfo,
) -> list[ProcessSpec]:
    """Return several processes of this machine in rank order. They are on loopback if the job has one machine.

    Args:
        settings: Settings of the launch.
        command: Program and arguments.
        environ: Environment of the launcher.
        count: Number of processes on this machine.
        host: This machine.
        meeting: Rendezvous of the processes. Only rank 0 inherits the descriptor of its store.
    """
    # What torchrun says of its own job would have the workers take these ranks for torchrun's.
    inherited = {name: environ[name] for name in _without_store(environ) if not name.startswith("TORCHELASTIC_")}
    gloo, nccl = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
    if meeting.address == LOOPBACK:
        # Whatever interface the shell names for other jobs: these workers must listen on loopback only.
        sockets = {gloo: host.loopback_interface, nccl: f"={host.loopback_interface}"}  # NCCL takes a name for a prefix
    else:
        # NCCL chooses by itself, the fast ones first; the interface through which processes meet may be a slow one
        sockets = {gloo: meeting.interface} if meeting.interface and gloo not in environ else {}
    shared = {
        "OMP_NUM_THREADS": str(max(1, host.cores // count)),
        **plan_one(settings, command, inherited).environ,
        **sockets,
        "MASTER_PORT": str(meeting.master_port),
    }
    specs = []
    for local in range(count):
        rank = meeting.first + local
        fd = meeting.store_fd if rank == 0 else None
        place = Topology(
            rank=rank,
            world_size=meeting.world or count,
            local_rank=local,
            local_world_size=count,
            node_rank=meeting.machine,
            rendezvous=Rendezvous(meeting.address, meeting.store_port, fd),
            launcher=ACCEL_LAUNCH,
        )
        variables = {**shared, **worker_environ(place), **_own_slice(shared, local)}
        specs.append(ProcessSpec(tuple(command), variables, () if fd is None else (fd,), rank))
    return specs


def _own_slice(environ: Mapping[str, str], local: int) -> dict[str, str]:
    """Return the variable that shows a process its slice of a GPU, since CUDA shows only the first slice."""
    names = [name.strip() for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    slices = local < len(names) and all(name.startswith("MIG-") for name in names)
    return {"CUDA_VISIBLE_DEVICES": names[local]} if slices else {}


def watched(environ: Mapping[str, str], folder: str, attempt: int) -> dict[str, str]:
    """Return the environment of a job that this process waits for.

    Args:
        environ: Environment of the launcher.
        folder: Folder of the job, in which processes leave notes. It stands after the folders of jobs around this job.
        attempt: Number of earlier starts.
    """
    inside = ":".join([*filter(None, [environ.get(JOBS)]), folder])
    return {**environ, ATTEMPT: str(attempt), JOBS: inside, FLIGHT_RECORDER: folder}


def _without_store(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in (STORE_FD, STORE_PORT)}
