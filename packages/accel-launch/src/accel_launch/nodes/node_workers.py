"""Run the processes of one machine in a job of many, and listen to other machines."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from math import inf
from signal import Signals
from typing import final

from accel_state.errors import CannotRun
from accel_state.exit_codes import STOPPED

from accel_launch.cli.options import C10D
from accel_launch.job.job import Job
from accel_launch.job.job_runner import progressed, supervised, with_notes
from accel_launch.job.plan import LOOPBACK, RendezvousInfo
from accel_launch.job.ports import reserved_ports
from accel_launch.nodes.addresses import address_towards, interface_towards
from accel_launch.nodes.board import BoardLost
from accel_launch.nodes.node_spec import NodeSpec
from accel_launch.nodes.open_board import LOOK_S
from accel_launch.nodes.peers import OWN, NodeFailure, Peers
from accel_launch.report.failure_report import described
from accel_launch.report.job_result import LOST_PEER, JobResult, ProcessExit
from accel_launch.supervise.signals import Interrupted, SignalSource
from accel_launch.supervise.supervisor import FAILURE_GRACE_S, GRACE_S, PEER_S, Supervisor

#: seconds of one look at processes and machines; and for others to end
STEP_S, ENDING_S = 0.1, 10.0
#: an order of failures after all others: somebody has ended the job, which had failed
ASKED = LOST_PEER + 1


@final
class NodeWorkers:
    """The processes of one machine, which hears of those of the others.

    Args:
        job: Job of this machine.
        node: This machine among the others.
        source: Source of signals.
    """

    def __init__(self, job: Job, node: NodeSpec, source: SignalSource) -> None:
        self._job, self._node, self._source = job, node, source
        self._grace_s = max(job.settings.grace_period or 0, *GRACE_S.values())
        self._peers: Peers | None = None

    def run(self, peers: Peers, attempt: int) -> JobResult:
        """Start the processes of this machine, watch all until they have ended, and return how.

        Args:
            peers: Machines of this start.
            attempt: Number of earlier starts, as this machine counts.

        Raises:
            CannotRun: A process cannot be started, which the other machines are told.
            BoardLost: The board is gone before the processes have started.
            Interrupted: A signal has come, as the own processes had ended well and processes of others ran.
        """
        self._peers = peers
        with ExitStack() as stack:
            try:
                supervisor = self._start(stack, peers, attempt)
            except CannotRun as error:
                # lost, as its launcher ends
                peers.announce(f"  the machine is gone, as it could not {error}", 2, lost=True)
                raise
            try:
                self._watch(supervisor, peers)
                any_progress = self._wait_for_others(supervisor, peers)
            except BoardLost as lost:
                peers.lost_board(lost)
                any_progress = False
                if not supervisor.ending:
                    supervisor.end_others()
                while not supervisor.step(STEP_S):
                    pass
            supervisor.finish_output()
            result = with_notes(supervisor.result(), self._job, supervisor, peers.world)
            return replace(self._judge(result, peers), progressed=any_progress)

    def _start(self, stack: ExitStack, peers: Peers, attempt: int) -> Supervisor:
        """Start the processes, which `stack` ends, with those that they have started."""
        started = store_fd = None
        if peers.machine == 0:
            mine, started = stack.enter_context(reserved_ports(address_towards(self._node) or LOOPBACK))
            store_fd = mine.store_fd
            peers.publish("start", (attempt, mine.store_port, mine.master_port, mine.address))
        while not peers.published("start"):
            self._source.pause(LOOK_S)
            peers.look()
            if peers.elsewhere is not None and peers.elsewhere.machine == 0:
                raise CannotRun("launch", [f"on machine 0, {peers.hosts[0]}: {peers.elsewhere.words.strip()}"])
        attempt, store_port, master_port, address = peers.published("start")[0]  # as the first machine counts
        rendezvous = RendezvousInfo(
            store_port,
            store_fd,
            master_port,
            address,
            interface="" if address == LOOPBACK else interface_towards(self._node),
            machine=peers.machine,
            first=peers.first,
            world=peers.world,
        )
        supervisor = stack.enter_context(supervised(self._job, self._source, rendezvous, attempt=attempt))
        stack.callback(supervisor.kill)
        supervisor.start(started)
        return supervisor

    def pause(self, seconds: float) -> JobResult | None:
        """Wait before the next start. Return how the job has ended on another machine meanwhile, or None.

        Raises:
            Interrupted: A signal has ended the wait.
        """
        until, peers = time.monotonic() + seconds, self._peers
        while peers is not None and time.monotonic() < until:
            try:
                self._source.pause(STEP_S, "all machines to start again")
                new = peers.look()
            except BoardLost as lost:
                new = [peers.lost_board(lost)]
                peers = None if self._may_be_lost(new[0]) else peers
            for failure in new:
                if failure.outside or (failure.lost and not self._may_be_lost(failure)):
                    return JobResult(self._job.count, elsewhere=failure)
        return None

    def leave(self, interrupted: Interrupted, say: Callable[[str], None]) -> JobResult:
        """Return the result of a launcher that a signal ended while it waited for other machines, which are told."""
        number, by = interrupted.number, f"by {interrupted.number.name} from outside, while"
        if self._peers is not None:
            self._peers.announce(
                f"  the job was ended there {by} the launcher waited for {interrupted.awaited}",
                128 + number,
                outside=True,
            )
        say(f"accel: the job was ended {by} this launcher waited for {interrupted.awaited}")
        return JobResult(self._job.count, elsewhere=NodeFailure(0, "", "", 128 + number, outside=True))

    def _watch(self, supervisor: Supervisor, peers: Peers) -> None:
        """Wait until the processes of this machine have ended, and end them if another machine has failed."""
        announced, over, heard_s = 0, False, inf
        while not over:
            over = supervisor.step(STEP_S)
            for ended in supervisor.failures[announced:]:
                announced, heard = announced + 1, peers.elsewhere
                # one that has lost a peer may be heard of before what it has lost has ended here
                if heard is None or ended.status == STOPPED or heard.order == LOST_PEER > ended.order:
                    _announce(peers, ended, supervisor.outside)
            peers.look()
            failure = peers.elsewhere
            if failure is not None:
                heard_s = min(heard_s, time.monotonic())
            if failure is not None and not (over or supervisor.failures or supervisor.ending):
                # one that has lost a peer may have lost one of this machine, which is still to say why
                if failure.order == LOST_PEER and time.monotonic() - heard_s < PEER_S:
                    continue
                grace_s = self._grace_s if failure.outside else FAILURE_GRACE_S
                supervisor.end_others(save=failure.code == STOPPED, grace_s=grace_s)

    def _wait_for_others(self, supervisor: Supervisor, peers: Peers) -> bool:
        """Wait until the processes of all have ended. Return True if any machine has left a checkpoint."""
        result = supervisor.result()
        say_ended = partial(
            peers.announce, "  the job was ended there from outside", result.code, order=ASKED, outside=True
        )
        if result.by_somebody:
            say_ended()
        peers.publish("ended", progressed(supervisor))
        until = inf
        while len(peers.published("ended")) < peers.size and time.monotonic() < until and not peers.any_lost:
            try:
                self._source.pause(STEP_S)
            except Interrupted as interrupted:
                others = [f"{rank}, {host}" for rank, host in enumerate(peers.hosts) if rank != peers.machine]
                if result.first is None and not peers.failures:
                    raise Interrupted(interrupted.number, f"machine {', '.join(others)} to end") from None
                say_ended()
                until = 0.0
            peers.look()
            if peers.failures:
                until = min(until, time.monotonic() + self._grace_s + ENDING_S)
        with suppress(BoardLost):  # all have ended: the first machine may have left
            peers.look()
        return any(peers.published("ended"))

    def _judge(self, result: JobResult, peers: Peers) -> JobResult:
        """Replace the root cause of a result by that of another machine, if it lies there."""
        first, failures = result.first, peers.failures
        # what has ended a job elsewhere, may have it save here
        root = min(failures, key=lambda failure: failure.order, default=None)
        stopped = first is not None and first.status == STOPPED
        if root is not None and not stopped and (root.machine != peers.machine or first is None or root.order == OWN):
            result = replace(result, first=None, elsewhere=root)
        return replace(
            result,
            asked=result.asked or any(failure.outside for failure in failures),
            lost_machine=any(failure.lost and not self._may_be_lost(failure) for failure in failures),
        )

    def _may_be_lost(self, failure: NodeFailure) -> bool:
        """Return True if the job goes on without a machine, or with another in its place."""
        replaceable = self._job.settings.rdzv_backend == C10D and failure.order != OWN
        return replaceable and (failure.machine > 0 or self._node.survives_first)


def _announce(peers: Peers, ended: ProcessExit, outside: Signals | None) -> None:
    """Send other machines the failure of a process."""
    words = "\n".join(described(ended, peers.world))
    if outside is not None:
        words = f"  the job was ended there by {outside.name} from outside"
    traceback = ended.cause.shown if ended.cause is not None else ""
    peers.announce(words, ended.code, traceback=traceback, order=ended.order, outside=outside is not None)
