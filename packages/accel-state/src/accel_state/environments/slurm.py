"""The tasks of a SLURM step (`srun`), where the batch script around the step is a single process."""

import re
from collections.abc import Iterator, Mapping
from typing import ClassVar, final

from accel_state.environ import integers
from accel_state.environments._base import Environment, environ_rendezvous
from accel_state.errors import TopologyError
from accel_state.topology import Rendezvous, Topology

# Below the range from which Linux hands out ports by itself (32768), so that nothing else has it by chance.
FIRST_PORT, PORTS = 15000, 16000


@final
class Slurm(Environment):
    """A task of a step that `srun` started."""

    priority: ClassVar[int] = 40

    @classmethod
    def topology(cls, environ: Mapping[str, str]) -> Topology | None:
        """Return the rank of this task in its step, where all tasks meet on the first host."""
        # A batch script has SLURM_PROCID too, but only a step says how many tasks it has.
        if "SLURM_STEP_NUM_TASKS" not in environ:
            return None
        names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NODEID")
        rank, world_size, local_rank, node_rank = integers(environ, names, "SLURM")
        return Topology(
            rank=rank,
            world_size=world_size,
            local_rank=local_rank,
            local_world_size=_tasks_here(environ, world_size, node_rank),
            node_rank=node_rank,
            rendezvous=_rendezvous(environ) if world_size > 1 else None,
            launcher="SLURM",
        )


def _tasks_here(environ: Mapping[str, str], world_size: int, node_rank: int) -> int:
    text = environ.get("SLURM_STEP_TASKS_PER_NODE", str(world_size))
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            raise TopologyError(f"SLURM_STEP_TASKS_PER_NODE={text!r}: expected counts such as 2(x3),1")
        counts += [int(match[1])] * int(match[2] or 1)
    if node_rank >= len(counts):
        raise TopologyError(
            f"SLURM_NODEID={node_rank}, but SLURM_STEP_TASKS_PER_NODE={text!r} names {len(counts)} nodes"
        )
    return counts[node_rank]


def _rendezvous(environ: Mapping[str, str]) -> Rendezvous:
    place = environ_rendezvous(environ, "SLURM")
    if place is not None:
        return place
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST")
    if not nodes:
        raise TopologyError("SLURM gave no list of nodes; set MASTER_ADDR and MASTER_PORT to the host of task 0")
    job, step = integers(environ, ("SLURM_JOB_ID", "SLURM_STEP_ID"), "SLURM")
    first = next(hosts(nodes), "")
    if not first:
        raise TopologyError(f"the list of nodes {nodes!r} names none; set MASTER_ADDR and MASTER_PORT")
    return Rendezvous(first, FIRST_PORT + (job * 31 + step) % PORTS)


def hosts(nodes: str) -> Iterator[str]:
    """Yield the host names in SLURM's short form: "gpu[01-03,07],login" is gpu01, gpu02, gpu03, gpu07, login.

    Raises:
        TopologyError: For brackets that hold anything but numbers and ranges.
    """
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)*", nodes):
        yield from _expand(part)


def _expand(name: str) -> Iterator[str]:
    match = re.search(r"\[([^\]]*)\]", name)
    if match is None:
        yield name
        return
    for item in match[1].split(","):
        first, _, last = item.partition("-")
        if not (first.isdecimal() and (last or first).isdecimal()):
            raise TopologyError(
                f"the node list has {name!r}: expected numbers and ranges in brackets, as in gpu[01-03,07]"
            )
        for number in range(int(first), int(last or first) + 1):
            yield from _expand(f"{name[: match.start()]}{number:0{len(first)}d}{name[match.end() :]}")


ENVIRONMENT = Slurm
