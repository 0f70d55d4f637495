"""Run the share of one machine in a job of many: machines meet, start their processes, and watch them."""

from __future__ import annotations

from collections.abc import Callable

from accel_launch.job.job import Job
from accel_launch.job.job_runner import run_until_done
from accel_launch.nodes.board import BoardLost
from accel_launch.nodes.node_rendezvous import NodeRendezvous
from accel_launch.nodes.node_spec import NodeSpec
from accel_launch.nodes.node_workers import NodeWorkers
from accel_launch.report.job_result import JobResult
from accel_launch.supervise.signals import Interrupted, SignalSource


def run_on_node(job: Job, node: NodeSpec, source: SignalSource, say: Callable[[str], None]) -> JobResult:
    """Run the share of this machine to the end of the job, and return how it ended.

    Args:
        job: Processes of this machine.
        node: Place of this machine among all, and the address at which they meet.
        source: Signals to the launcher.
        say: Prints lines for the user.

    Raises:
        CannotRun: The machines do not meet, or a process cannot be started.

    Collective:
        Every machine of the job must call.
    """
    # there, names come up with machines
    rendezvous = NodeRendezvous(node, source, job.settings, job.count, patient="KUBERNETES_SERVICE_HOST" in job.environ)
    workers = NodeWorkers(job, node, source)
    with source, rendezvous:

        def run(attempt: int) -> JobResult:
            try:
                peers = rendezvous.meet()
                if peers.size < node.count:
                    waited = f"the others have not come within {job.settings.join_timeout} s"
                    say(f"accel: goes on with {peers.size} of {node.count} machines, as {waited}")
                return workers.run(peers, attempt)
            except BoardLost as lost:
                raise rendezvous.gone(lost) from lost

        try:
            return run_until_done(run, job.settings.max_restarts, say, workers.pause)
        except Interrupted as interrupted:
            return workers.leave(interrupted, say)
