"""Return a launch in words: the machine, and the processes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from accel_state.environ import FLIGHT_RECORDER, JOBS, MEMORY_CHECKPOINTS, STORE_FD, STORE_PORT

from accel_launch.cli.options import C10D
from accel_launch.job.job import Job
from accel_launch.job.plan import LOOPBACK, ProcessSpec, RendezvousInfo, watched, words_of
from accel_launch.memory.job_folder import memory_place

#: what stands for a number that the system gives at the start
FREE = "(a free port)"
_GIVEN = {
    STORE_PORT: FREE,
    "MASTER_PORT": FREE,
    STORE_FD: "(an open socket)",
    FLIGHT_RECORDER: "(a new folder)",
    MEMORY_CHECKPOINTS: "(a new folder)",
    JOBS: "(a new folder)",
}


def what_was_found(job: Job) -> Iterator[str]:
    """Yield lines on this machine, its place among others, and how many processes it starts."""
    host, node = job.host, job.node
    yield f"machine: {host.cores} cores, {host.accelerators} accelerators"
    if node is None:
        if job.place is not None:
            yield f"started by another launcher, which gave it {words_of(job.place)}: one process, in its place"
        where = f", which meet on {LOOPBACK}" if job.count > 1 else ", in the place of accel launch"
        yield f"processes: {job.count}{where}"
        return
    rank = f"machine {node.rank}" if node.rank is not None else "a machine"
    how = "ranks in the order in which they come" if job.settings.rdzv_backend == C10D else "ranks as given"
    yield f"machines: {node.count}, this is {rank}; they meet at {node.host}:{node.port}, {how}"
    if "SLURM_STEP_ID" in job.environ:
        yield f"found in SLURM: step {job.environ.get('SLURM_JOB_ID')}.{job.environ['SLURM_STEP_ID']}"
    yield f"processes: {job.count} here; listens on the network, for the other machines"


def what_would_start(job: Job) -> Iterator[str]:
    """Yield lines on each process: its command, and the variables that its environment has and this process's lacks."""
    if job.node is not None and job.settings.rdzv_backend == C10D:
        yield "machines get their ranks in the order in which they come; those of the first would be:"
    for spec in _specs(job):
        yield f"rank {spec.rank}: {shlex.join(spec.command)}"
        yield from (f"    {line}" for line in _difference(job.environ, spec.environ))


def _specs(job: Job) -> list[ProcessSpec]:
    node = job.node
    if job.alone:
        return job.processes(job.environ, None)
    meeting = RendezvousInfo(store_port=1, store_fd=0, master_port=1) if job.count > 1 else None
    if node is not None:
        from accel_launch.nodes.addresses import address_of, interface_towards

        rank = node.rank or 0
        where = address_of(node), interface_towards(node)
        meeting = RendezvousInfo(1, None if rank else 0, 1, *where, rank, rank * job.count, node.count * job.count)
    memory = {MEMORY_CHECKPOINTS: ""} if memory_place(job.settings.memory_checkpoint_dir) else {}
    return job.processes(watched({**job.environ, **memory}, "", 0), meeting)


def _difference(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(after):
        if before.get(name) != after[name]:
            yield f"{name}={_GIVEN.get(name) or shlex.quote(after[name])}"
    for name in sorted(before.keys() - after.keys()):
        yield f"{name} is unset"
