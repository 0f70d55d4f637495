"""The processes of one machine, as torch's elastic agent sees them, and what the other machines say."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, final

from accel_state.exit_codes import STOPPED

from accel_launch.cli.options import C10D
from accel_launch.job.job import Job
from accel_launch.job.job_runner import JobRun, supervised
from accel_launch.job.plan import LOOPBACK, RendezvousInfo
from accel_launch.job.ports import PortReservation
from accel_launch.nodes.addresses import address_towards, interface_towards
from accel_launch.nodes.node_spec import NodeSpec
from accel_launch.nodes.peers import NodeFailure, Peers, StoreLost
from accel_launch.report.failure_report import cause_of, described
from accel_launch.report.job_result import KILLED, LOST_PEER, JobResult, ProcessExit
from accel_launch.supervise.restarts import announce, tell
from accel_launch.supervise.signals import ENDING, Interrupted, SignalSource
from accel_launch.supervise.supervisor import GRACE_S, PEER_S

if TYPE_CHECKING:
    from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup

#: seconds of one look at processes and machines; for the words of others to come; and for others to end
STEP_S, WORDS_S, ENDING_S = 0.1, 0.5, 10.0


@final
class NodeWorkers:
    """The processes of one machine, as torch's agent starts, watches and ends them, and what other machines say."""

    def __init__(self, job: Job, node: NodeSpec, source: SignalSource, say: Callable[[str], None]) -> None:
        self._job, self._node, self._source, self._say = job, node, source, say
        self._stack = ExitStack()
        self._run: JobRun | None = None
        self._peers: Peers | None = None
        #: torch's agent
        self.agent: Any = None
        self._attempt = self._failures = 0
        self._told = 0
        self._done = False
        #: how the job has ended so far
        self.result = JobResult(job.count)
        self._elsewhere: NodeFailure | None = None
        self._elsewhere_s = 0.0

    def __enter__(self) -> NodeWorkers:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        if self._peers is not None:
            self._peers.leave()

    def start(self, group: WorkerGroup) -> dict[int, Any]:
        """Starts the processes of this machine, at the ranks of the group; their process ids.

        Raises: CannotRun if one cannot be started.
        """
        machine, node = group.group_rank or 0, self._node
        self._peers = peers = Peers(group.store, machine, group.group_world_size or 1, socket.gethostname())
        self._done, self._told, self._elsewhere = False, 0, None
        ports = None
        if machine == 0:
            ports = self._stack.enter_context(PortReservation(address_towards(node.host, node.port) or LOOPBACK))
            meeting = ports.meeting
            shared = {"store_port": meeting.store_port, "master_port": meeting.master_port, "address": meeting.address}
            peers.publish("meeting", {**shared, "attempt": self._attempt})
        told = peers.read("meeting")
        self._attempt = told.pop("attempt")
        meeting = RendezvousInfo(
            **told,
            store_fd=ports.meeting.store_fd if ports is not None else None,
            interface="" if told["address"] == LOOPBACK else interface_towards(node.host, node.port),
            machine=machine,
            first=group.workers[0].global_rank,
            world=group.workers[0].world_size,
        )
        run = supervised(self._job, self._source, meeting, attempt=self._attempt)
        self._run = self._stack.enter_context(run)
        self._run.supervisor.start(ports.handed_over if ports is not None else None)
        return {worker.local_rank: worker.global_rank for worker in group.workers}

    def stop(self) -> None:
        """Ends the processes that run, and what they have started."""
        if self._run is not None:
            self._run.supervisor.kill()
            self._run = None
        self._stack.close()

    def monitor(self, group: WorkerGroup) -> RunResult:
        """Looks after processes and other machines, once."""
        from torch.distributed.elastic.agent.server.api import RunResult, WorkerState

        run, peers = self._run, self._peers
        if run is None or peers is None:
            raise RuntimeError("the processes were not started")
        try:
            over = self._look(run, peers)
        except StoreLost as lost:
            words = f"  the machine is gone: {lost}"
            peers.failures.append(NodeFailure(0, self._node.host, words, 1, lost=True))
            self._hear(peers.failures[-1], run)
            over = self._end(run)
        if not over:
            return RunResult(state=WorkerState.HEALTHY)
        run.supervisor.finish_output()
        self.result = self._judge(run.with_notes(run.supervisor.result()), peers)
        if self.result.well:
            return RunResult(WorkerState.SUCCEEDED, {worker.global_rank: None for worker in group.workers})
        tell(self.result, self._say)
        self._decide(run, peers)
        return RunResult(state=WorkerState.FAILED)

    def _look(self, run: JobRun, peers: Peers) -> bool:
        """Whether the round is over for this machine."""
        supervisor = run.supervisor
        if not self._done:
            self._done = supervisor.step(STEP_S)
            for ended in supervisor.failures[self._told :]:
                self._told += 1
                if self._elsewhere is None or ended.status == STOPPED:
                    self._announce_exit(peers, run, ended)
            if self._done and not supervisor.failures and supervisor.outside is None:
                peers.count("done", 1)
        else:
            event = self._source.wait(STEP_S)
            if event is not None and event.number in ENDING:
                left = ", ".join(self._others(peers))
                raise Interrupted(event.number, f"machine {left} to end")
        for failure in peers.look():
            if failure.machine != peers.machine:
                self._hear(failure, run)
        self._obey(run)
        failed = bool(supervisor.failures) or supervisor.outside is not None or self._elsewhere is not None
        return self._done and (failed or peers.count("done") == self._node.count)

    def _others(self, peers: Peers) -> list[str]:
        return [f"{one}, {peers.host_of(one)}" for one in range(self._node.count) if one != peers.machine]

    def _announce_exit(self, peers: Peers, run: JobRun, ended: ProcessExit) -> None:
        """Tells other machines of a process that has failed."""
        cause, outside = cause_of(ended), run.supervisor.outside
        words = "\n".join(described(ended, run.world))
        if outside is not None:
            words = f"  the job was ended there by {outside.name} from outside"
        traceback = cause.shown if cause is not None else ""
        self._announce(peers, words, ended.code, traceback, ended.order, outside=outside is not None)

    def _announce(
        self, peers: Peers, words: str, code: int, traceback: str = "", order: int = KILLED, *, outside: bool
    ) -> None:
        host = socket.gethostname()
        peers.announce(NodeFailure(peers.machine, host, words, code, traceback, order, outside=outside))

    def _hear(self, failure: NodeFailure, run: JobRun) -> None:
        if self._elsewhere is None:
            self._elsewhere, self._elsewhere_s = failure, time.monotonic()

    def _obey(self, run: JobRun) -> None:
        """Ends the processes of this machine, since another one has failed."""
        supervisor, failure = run.supervisor, self._elsewhere
        if failure is None or self._done or supervisor.first is not None or supervisor.ending:
            return
        # one that has lost a peer may have lost one of this machine, which is still to say why
        if failure.order != LOST_PEER or time.monotonic() - self._elsewhere_s >= PEER_S:
            grace_s = max(self._job.settings.grace_period or 0, *GRACE_S.values()) if failure.outside else None
            supervisor.end_others(save=failure.code == STOPPED, grace_s=grace_s)

    def _end(self, run: JobRun) -> bool:
        """Ends the processes of this machine, which has lost the others."""
        supervisor = run.supervisor
        if not supervisor.ending:
            supervisor.end_others()
        while not supervisor.step(STEP_S):
            pass
        return True

    def _judge(self, result: JobResult, peers: Peers) -> JobResult:
        """The result with the failure that the others come from, on whichever machine it was."""
        first, there = result.first, self._elsewhere
        if first is not None and first.status == STOPPED:
            return result  # what has ended it elsewhere, has it save here
        if first is None and there is None:
            return result
        until = time.monotonic() + WORDS_S
        while time.monotonic() < until and not (there is not None and there.lost):
            try:
                peers.look()
            except StoreLost:
                break
            time.sleep(WORDS_S / 10)
        others = [one for one in peers.failures if one.machine != peers.machine]
        found = min(others, key=lambda one: one.order, default=there)
        if found is None:
            return result
        if first is None or found.order < first.order or (found.order == first.order and there is not None):
            return replace(result, first=None, elsewhere=found)
        return result

    def _decide(self, run: JobRun, peers: Peers) -> None:
        """Whether torch's agent may start the processes again, which all machines decide alike."""
        result, settings = self.result, self._job.settings
        progressed, may = False, False
        with suppress(StoreLost):
            if result.by_somebody:
                self._announce(peers, "  the job was ended there from outside", result.code, outside=True)
            progressed = self._settle(run, peers)
            may = not any(one.outside for one in peers.failures) and result.code != STOPPED
        lost = [one for one in peers.failures if one.lost]
        may = may and not (lost and (settings.rdzv_backend != C10D or lost[0].machine == 0))
        self._failures = 1 if progressed else self._failures + 1
        if may and self._failures <= settings.max_restarts:
            since = progressed or self._attempt + 1 > self._failures
            self._pause(announce(self._failures, settings.max_restarts, since, self._say), peers)
            return
        if settings.max_restarts and (may or lost):
            restarts = f"after {settings.max_restarts} restarts without a new checkpoint"
            self._say(f"accel: gives up {'as a machine is lost' if lost else restarts}")
        self.agent._remaining_restarts = 0

    def _settle(self, run: JobRun, peers: Peers) -> bool:
        """Waits for the others to end their share; whether any machine has got further.

        Raises: StoreLost; Interrupted.
        """
        until = time.monotonic() + max(self._job.settings.grace_period or 0, *GRACE_S.values()) + ENDING_S
        peers.count("progress", int(run.progressed))
        ended = peers.count("ended", 1)
        while ended < self._node.count and time.monotonic() < until and not any(one.lost for one in peers.failures):
            self._wait()
            peers.look()
            ended = peers.count("ended")
        peers.look(at_once=True)
        return peers.count("progress") > 0

    def _wait(self) -> None:
        """Lets a little time pass, after a failure.

        Raises: Interrupted.
        """
        try:
            self._source.pause(STEP_S)
        except Interrupted as interrupted:
            raise Interrupted(interrupted.number, "all machines to start again") from None

    def _pause(self, seconds: float, peers: Peers) -> None:
        """Lets time pass before the next start, unless a machine leaves.

        Raises: Interrupted.
        """
        until = time.monotonic() + seconds
        self.agent._remaining_restarts = 1
        while time.monotonic() < until:
            self._wait()
            left = [one for one in peers.look() if one.outside or one.lost]
            if left:
                self.agent._remaining_restarts = 0
                self.result = replace(self.result, first=None, elsewhere=left[0])
                tell(self.result, self._say)
                return
        self._attempt += 1

    def leave_waiting(self, interrupted: Interrupted) -> JobResult:
        """The end of this launcher by a signal, while it waited for other machines, which are told."""
        number, awaited = interrupted.number, interrupted.awaited
        by = f"by {number.name} from outside, while"
        if self._peers is not None:
            words = f"  the job was ended there {by} the launcher waited for {awaited}"
            with suppress(StoreLost):
                self._announce(self._peers, words, 128 + number, outside=True)
        self._say(f"accel: the job was ended {by} this launcher waited for {awaited}")
        return JobResult(self._job.count, elsewhere=NodeFailure(0, "", "", 128 + number, outside=True))
