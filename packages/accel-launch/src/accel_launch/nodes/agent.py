"""Runs the share of one machine in a job of many: torch's elastic agent meets, starts and watches."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from accel_launch.job.job import Job
from accel_launch.nodes.board import BoardLost
from accel_launch.nodes.node_rendezvous import NodeRendezvous
from accel_launch.nodes.node_spec import NodeSpec
from accel_launch.nodes.node_workers import NodeWorkers
from accel_launch.report.job_result import JobResult
from accel_launch.supervise.restarts import run_until_done
from accel_launch.supervise.signals import Interrupted, SignalSource

if TYPE_CHECKING:
    from torch.distributed.elastic.agent.server.api import RunResult, SimpleElasticAgent, WorkerGroup


def run_on_node(job: Job, node: NodeSpec, source: SignalSource, say: Callable[[str], None]) -> JobResult:
    """Runs the share of this machine to the end of the job, and says how it ended.

    Raises: CannotRun if the machines do not meet, or a process cannot be started.
    """
    _import_quietly()
    # there, names come up with machines
    rendezvous = NodeRendezvous(node, source, job.settings, job.count, patient="KUBERNETES_SERVICE_HOST" in job.environ)
    with source, rendezvous, NodeWorkers(job, node, source) as workers:

        def run(attempt: int) -> JobResult:
            workers.attempt = attempt
            try:
                _torch_agent(workers, job, rendezvous).run()
            except BoardLost as lost:
                raise rendezvous.gone(lost) from lost
            return workers.result

        try:
            return run_until_done(run, job.settings.max_restarts, say, workers.pause)
        except Interrupted as interrupted:
            return workers.leave(interrupted, say)


def ranks_of(counts: Sequence[int], machine: int) -> tuple[range, int]:
    """Return the ranks of a machine, and the number of all processes, from the count of each machine."""
    first = sum(counts[:machine])
    return range(first, first + counts[machine]), sum(counts)


def _torch_agent(workers: NodeWorkers, job: Job, rendezvous: Any) -> SimpleElasticAgent:
    """torch's elastic agent for one start, whose processes are ours."""
    from torch.distributed.elastic.agent.server.api import SimpleElasticAgent, Worker, WorkerSpec

    class Agent(SimpleElasticAgent):
        def _assign_worker_ranks(self, store: Any, group_rank: int, size: int, spec: WorkerSpec) -> list[Worker]:
            """The workers of this machine, from the facts of the rendezvous; torch would wait for notes of all."""
            ranks, world = ranks_of([count for _, count in rendezvous.machines], group_rank)
            return [Worker(rank - ranks.start, rank, rank, world, world) for rank in ranks]

        def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
            return workers.start(worker_group)

        def _stop_workers(self, worker_group: WorkerGroup) -> None:
            workers.stop()

        def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
            return workers.monitor(worker_group)

        def _shutdown(self, *arguments: object, **keywords: object) -> None:
            workers.stop()

        def _exit_barrier(self) -> None:
            """The machines have waited for each other already."""

    return Agent(
        WorkerSpec("accel", job.count, rendezvous, entrypoint=workers.start, max_restarts=0, monitor_interval=0.001)
    )


def _import_quietly() -> None:
    """Keeps torch's agent from telling of its own what is told here."""
    import_module("torch.distributed")
    if "LOGLEVEL" not in os.environ:
        logging.disable(logging.CRITICAL)
