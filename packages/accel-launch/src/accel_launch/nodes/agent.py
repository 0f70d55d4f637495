"""Runs the share of one machine in a job of many: torch's elastic agent meets, starts, watches and starts again."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from accel_state.errors import CannotRun

from accel_launch.cli.options import C10D
from accel_launch.job.job import Job
from accel_launch.nodes.addresses import address_towards, is_here
from accel_launch.nodes.node_spec import NodeSpec
from accel_launch.nodes.node_workers import NodeWorkers
from accel_launch.nodes.static_rendezvous import StaticRendezvous
from accel_launch.report.job_result import JobResult
from accel_launch.supervise.signals import Interrupted, SignalSource, interruptible

if TYPE_CHECKING:
    from torch.distributed.elastic.agent.server.api import RunResult, SimpleElasticAgent, WorkerGroup


def run_on_node(job: Job, node: NodeSpec, source: SignalSource, say: Callable[[str], None]) -> JobResult:
    """Runs the share of this machine to the end of the job, and says how it ended.

    Raises: CannotRun if the machines do not meet, or a process cannot be started.
    """
    _import_quietly()
    from torch.distributed.elastic.rendezvous.api import RendezvousError

    where = f"{node.host}:{node.port}"
    with source, NodeWorkers(job, node, source, say) as workers:
        try:
            agent = _torch_agent(workers, job, _rendezvous(job, node, source))
            workers.agent = agent
            agent.run()
        except Interrupted as interrupted:
            return workers.leave_waiting(interrupted)
        except RendezvousError as error:
            why = error.__cause__ or error
            words = f"the machines cannot meet at {where}, which machine 0 has to serve: {why}"
            if "onnection" not in type(error).__name__:
                seconds = f"within {job.settings.join_timeout} s, at the start or after one was lost"
                words = f"{node.count} machines have not come together at {where} {seconds}: {why}"
            raise CannotRun("launch", [words]) from error
        return workers.result


def _rendezvous(job: Job, node: NodeSpec, source: SignalSource) -> Any:
    """Where the machines meet: at ranks that are given, or by torch's own rendezvous, which gives them."""
    settings, patient = job.settings, "KUBERNETES_SERVICE_HOST" in job.environ
    if settings.rdzv_backend != C10D:
        # what a script reads of it has to be the same for all its processes
        names = ("num_processes", "mixed_precision", "gradient_accumulation_steps")
        alike = {name: getattr(settings, name) for name in names}
        return StaticRendezvous(node, source, settings.join_timeout, alike, patient=patient)
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.api import RendezvousError
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

    host = f"[{node.host}]" if ":" in node.host else node.host
    parameters: dict[str, Any] = {
        "backend": C10D,
        "endpoint": f"{host}:{node.port}",
        "run_id": "accel",
        "min_nodes": node.count,
        "max_nodes": node.count,
        "local_addr": address_towards(node.host, node.port) or None,
        "join_timeout": settings.join_timeout,
        "read_timeout": settings.join_timeout,
    }
    with interruptible():
        serves = node.rank == 0 if node.rank is not None else is_here(node.host)
        try:
            return get_rendezvous_handler(RendezvousParameters(**parameters, is_host=serves))
        except (RuntimeError, RendezvousError):
            if not serves or node.rank is not None:
                raise
            # another launcher of this machine has come sooner, and serves
            return get_rendezvous_handler(RendezvousParameters(**parameters, is_host=False))


def _torch_agent(workers: NodeWorkers, job: Job, rendezvous: Any) -> SimpleElasticAgent:
    """torch's elastic agent, whose processes are ours."""
    from torch.distributed.elastic.agent.server.api import SimpleElasticAgent, WorkerSpec

    class Agent(SimpleElasticAgent):
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

        def _rendezvous(self, worker_group: WorkerGroup) -> None:
            if job.settings.rdzv_backend != C10D:
                super()._rendezvous(worker_group)
                return
            with interruptible():
                super()._rendezvous(worker_group)

    restarts = job.settings.max_restarts
    return Agent(
        WorkerSpec(
            "accel", job.count, rendezvous, entrypoint=workers.start, max_restarts=restarts, monitor_interval=0.001
        )
    )


def _import_quietly() -> None:
    """Keeps torch in this process from stacks and warnings of a connection whose other end is gone."""
    level = "TORCH_CPP_LOG_LEVEL"
    before = os.environ.get(level)
    os.environ.setdefault(level, "FATAL")
    import_module("torch.distributed")  # reads it once
    if before is None:
        del os.environ[level]
    if "LOGLEVEL" not in os.environ:
        logging.disable(logging.CRITICAL)
