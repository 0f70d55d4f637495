"""What a launch will do, in words: which settings won and why, the machine that was found, and the processes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace

from accel_state.environ import JOBS, JOURNAL, STORE_FD, STORE_PORT

from accel_launch.elastic import agent
from accel_launch.gathering import address_of
from accel_launch.job import Job
from accel_launch.link import interface_towards
from accel_launch.machines import Place
from accel_launch.plan import LOOPBACK, Ports, ProcessSpec, plan_many, plan_one, started_by_others, watched
from accel_launch.settings import C10D

#: what stands for a number that the system gives at the start
FREE = "(a free port)"
_GIVEN = {
    STORE_PORT: FREE,
    "MASTER_PORT": FREE,
    STORE_FD: "(an open socket)",
    JOURNAL: "(a new folder)",
    JOBS: "(a new folder)",
}


def what_was_found(job: Job) -> Iterator[str]:
    """The machine, its place among others, and how many processes it starts."""
    machine, place = job.machine, job.place
    yield f"machine: {machine.cores} cores, {machine.accelerators} accelerators"
    told = started_by_others(job.environ)
    if place is None:
        if told is not None:
            yield f"started by another launcher, which gave it {told}: one process, in its place"
        where = f", which meet on {LOOPBACK}" if job.count > 1 else ", in the place of accel launch"
        yield f"processes: {job.count}{where}"
        return
    rank = f"machine {place.rank}" if place.rank is not None else "a machine"
    how = "torch's elastic agent gives ranks" if job.settings.rdzv_backend == C10D else "ranks as given"
    yield f"machines: {place.count}, this is {rank}; they meet at {place.host}:{place.port}, {how}"
    if "SLURM_STEP_ID" in job.environ:
        yield f"found in SLURM: step {job.environ.get('SLURM_JOB_ID')}.{job.environ['SLURM_STEP_ID']}"
    yield f"processes: {job.count} here; listens on the network, for the other machines"


def what_would_start(job: Job) -> Iterator[str]:
    """Each process: its command, and what its environment has that this one's has not."""
    if job.place is not None and job.settings.rdzv_backend == C10D:
        spec = agent(job, job.place)
        yield f"torch's elastic agent: {shlex.join(spec.command)}"
        yield from (f"    {line}" for line in _difference(job.environ, spec.environ))
        yield f"{job.count} processes of it, whose ranks it gives: {shlex.join(job.command)}"
        return
    for spec in _specs(job):
        yield f"rank {spec.rank}: {shlex.join(spec.command)}"
        yield from (f"    {line}" for line in _difference(job.environ, spec.environ))


def _specs(job: Job) -> list[ProcessSpec]:
    if job.alone:
        return [plan_one(job.settings, job.command, job.environ)]
    environ = {**watched(job.environ, "", 0), JOURNAL: ""}
    if job.count == 1 and job.place is None:
        return [plan_one(job.settings, job.command, environ)]
    ports = Ports(store_port=1, store_fd=0, master_port=1)
    place = job.place
    if place is not None:
        first = (place.rank or 0) * job.count
        store = 0 if place.rank == 0 else None
        ports = replace(
            ports,
            store_fd=store,
            address=_address(place),
            interface=interface_towards(place.host, place.port),
            machine=place.rank or 0,
            first=first,
            world=place.count * job.count,
        )
    return plan_many(job.settings, job.command, environ, count=job.count, machine=job.machine, ports=ports)


def _address(place: Place) -> str:
    try:
        return address_of(place)
    except OSError:
        return place.host


def _difference(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(after):
        if before.get(name) != after[name]:
            yield f"{name}={_GIVEN.get(name) or shlex.quote(after[name])}"
    for name in sorted(before.keys() - after.keys()):
        yield f"{name} is unset"
