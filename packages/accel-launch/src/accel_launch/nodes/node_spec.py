"""The machines of a job, and the rank of this machine: from settings, and from SLURM in its steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from accel_state.errors import CannotRun, TopologyError

from accel_launch.cli.options import C10D, LaunchSettings
from accel_launch.job.plan import HostInfo

#: where machines meet, where nothing is said: torch's own
USUAL_PORT = 29500


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A machine among several.

    Args:
        rank: Rank of this machine; None is given when machines meet.
        count: Number of machines.
        host: Name or address of the first machine.
        port: Port at which they meet there.
        least: Number of machines that go on if others are lost. Default: all.
    """

    rank: int | None
    count: int
    host: str
    port: int
    least: int | None = None

    @property
    def survives_first(self) -> bool:
        """True if this machine goes on without the first machine: no third may do the same, for itself."""
        return self.least == 1 and self.count == 2


def find_node(settings: LaunchSettings, environ: Mapping[str, str], host: HostInfo) -> NodeSpec | None:
    """Return this machine among several, or None for a job of one machine or of tasks that SLURM starts itself.

    Args:
        settings: Settings of the launch.
        environ: Environment of the launcher.
        host: This machine.

    Raises:
        CannotRun: Settings are missing or contradict each other. The error lists all.
    """
    step, tasks = _slurm_step(environ)
    asked = settings.num_machines
    if asked is None and step is None:
        _refuse_batch_script(environ)
    if asked is None and step is not None and step.count == tasks > 1:
        several = (settings.num_processes or 0) > tasks or (not settings.cpu and host.accelerators > 1)
        asked = step.count if several else None
    if asked is None or asked == 1:
        if settings.machine_rank:
            raise CannotRun("launch", [f"machine_rank {settings.machine_rank} was given, but num_machines is 1"])
        return None
    told = step or NodeSpec(None, asked, "", USUAL_PORT)
    rank = settings.machine_rank if settings.machine_rank is not None else told.rank
    address, port = settings.main_process_ip or told.host, settings.main_process_port or told.port
    least = settings.min_machines
    wrong = (
        (
            told.count != asked,
            f"{asked} machines were asked for, but the SLURM step has {told.count} nodes: ask for as many",
        ),
        (
            step is not None and tasks != asked == told.count,
            f"the SLURM step has {tasks} tasks on {asked} nodes, and accel launch starts the processes of a node by"
            " itself: start one task for each node (srun --ntasks-per-node=1)",
        ),
        (
            not address,
            f"{asked} machines need --main_process_ip: the machine of rank 0, by a name or address that all can reach",
        ),
        (
            rank is None and settings.rdzv_backend != C10D,
            f"{asked} machines need --machine_rank: 0 on the first, up to {asked - 1} on the last",
        ),
        (
            (rank or 0) >= asked,
            f"machine_rank {rank} was given, but {asked} machines have the ranks 0 to {asked - 1}",
        ),
        (
            (settings.num_processes or 0) % asked,
            f"{settings.num_processes} processes cannot be shared evenly by {asked} machines: num_processes counts"
            " those of all machines together",
        ),
        (
            (least or 0) > asked,
            f"min_machines {least} was given, but num_machines is {asked}",
        ),
        (
            least is not None and settings.rdzv_backend != C10D,
            f"min_machines {least} needs --rdzv_backend c10d: machines that go on without others have no fixed ranks",
        ),
    )
    problems = [words for holds, words in wrong if holds]
    if problems:
        raise CannotRun("launch", problems)
    return NodeSpec(rank, asked, address, port, least)


def _slurm_step(environ: Mapping[str, str]) -> tuple[NodeSpec | None, int]:
    """Return this node among the nodes of a SLURM step, or None outside of a step, and the number of tasks."""
    names = ("SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS", "SLURM_NODEID", "SLURM_JOB_ID", "SLURM_STEP_ID")
    words = [environ.get(name, "") for name in names]
    nodes = environ.get("SLURM_STEP_NODELIST", "")
    if not (all(word.isdecimal() for word in words) and nodes):
        return None, 0
    from accel_state.environments.slurm import FIRST_PORT, PORTS, hosts

    count, tasks, node, job, number = map(int, words)
    try:
        host = next(hosts(nodes), "")
    except TopologyError as error:
        raise CannotRun("launch", [str(error)]) from error
    return NodeSpec(node, count, host, FIRST_PORT + (job * 31 + number) % PORTS), tasks


def _refuse_batch_script(environ: Mapping[str, str]) -> None:
    nodes = environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES") or "1"
    if "SLURM_JOB_ID" in environ and "SLURM_STEP_NUM_TASKS" not in environ and nodes.isdecimal() and int(nodes) > 1:
        raise CannotRun(
            "launch",
            [
                f"this is a SLURM job of {nodes} nodes, but not a step of it: the script would run on this node only;"
                " start it on all (srun --ntasks-per-node=1 accel launch ...), or say --num_machines 1"
            ],
        )
