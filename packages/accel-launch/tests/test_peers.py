"""What machines tell each other, over a board that all see at once."""

import signal
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from accel_launch.cli.options import LaunchSettings
from accel_launch.job import job_runner
from accel_launch.job.job import Job
from accel_launch.job.plan import HostInfo
from accel_launch.nodes import node_workers
from accel_launch.nodes.board import Board, BoardLost
from accel_launch.nodes.node_spec import NodeSpec
from accel_launch.nodes.node_workers import NodeWorkers
from accel_launch.nodes.peers import NodeFailure, Peers
from accel_launch.report.job_result import KILLED, LOST_PEER, SAID, JobResult, ProcessExit
from accel_launch.supervise.signals import Interrupted, SignalEvent, SignalSource
from accel_launch.supervise.supervisor import PEER_S, Supervisor

HOSTS, COUNTS = ("node1", "node2", "node3"), (2, 3, 1)


class SharedBoard:
    """What a board shows a machine; all machines of a test see what one of them writes, at once."""

    def __init__(self) -> None:
        self.written: dict[str, list[Any]] = {}
        self.gone: dict[str, str] = {}
        self.lost: BoardLost | None = None

    def tell(self, what: str, key: str, value: Any) -> None:
        self.written.setdefault(key, []).append(value)

    def known(self, key: str) -> Sequence[Any]:
        return self.written.get(key, [])


def peers_of(shown: SharedBoard, machine: int, hosts: Sequence[str] = HOSTS) -> Peers:
    names = [f"launcher of {host}" for host in hosts]
    return Peers(cast(Board, shown), 1, machine, hosts, COUNTS[: len(hosts)], names)


@pytest.mark.parametrize(("machine", "first"), [(0, 0), (1, 2), (2, 5)])
def test_ranks_go_on_where_those_of_the_machine_before_end(machine: int, first: int) -> None:
    found = peers_of(SharedBoard(), machine)
    assert (found.first, found.world) == (first, 6)


def test_a_machine_that_is_gone_is_announced_once_by_the_first() -> None:
    shown = SharedBoard()
    zero, one = (peers_of(shown, machine) for machine in (0, 1))
    shown.gone["launcher of node3"] = "it is silent"
    assert one.look() == []
    for _ in range(3):
        zero.look()
    assert zero.failures == one.look() == [NodeFailure(2, "node3", "  the machine is gone: it is silent", 1, lost=True)]


def test_what_was_told_counts_before_the_loss_of_the_board() -> None:
    shown = SharedBoard()
    one = peers_of(shown, 1)
    peers_of(shown, 0).announce("  rank 0 failed", 7)
    shown.lost = BoardLost("it is silent")
    assert [failure.code for failure in one.look()] == [7]
    with pytest.raises(BoardLost, match="it is silent"):
        one.look()


@pytest.mark.parametrize(("own", "machine"), [(False, 0), (True, 1)])
def test_a_lost_board_is_the_fault_of_the_machine_that_was_silent(own: bool, machine: int) -> None:
    """A launcher that was given up itself blames none of its ranks, which lost the others by that."""
    one, workers = peers_of(SharedBoard(), 1, HOSTS[:2]), workers_of_two("c10d")
    one.failures.append(NodeFailure(1, "node2", "  rank 1 was killed", 137, order=KILLED if own else LOST_PEER))
    one.lost_board(BoardLost("it is silent", own=own))
    judged = workers._judge(JobResult(2, ProcessExit(1, 9, 1, ("python",))), one)
    assert judged.elsewhere is not None
    assert (judged.elsewhere.machine, judged.elsewhere.words) == (machine, "  the machine is gone: it is silent")
    assert judged.lost_machine
    assert judged.first is None


class EndsAtOnce(SignalSource):
    """SIGTERM, at the first wait."""

    def __enter__(self) -> "EndsAtOnce":
        return self

    def __exit__(self, *error: object) -> None: ...

    def wait(self, timeout_s: float) -> SignalEvent | None:
        return SignalEvent(signal.SIGTERM, from_terminal=False)

    def in_child(self) -> None: ...


def test_a_signal_right_after_a_failure_ends_a_job_that_had_failed(tmp_path: Path) -> None:
    """The failure has not come back from the board; the launcher may not say that it just waited for the other one."""
    source, one = EndsAtOnce(), peers_of(SharedBoard(), 1, HOSTS[:2])
    one.announce("  rank 1 failed", 7)
    job = Job(LaunchSettings(), ("python",), {}, HostInfo(1, 0), 1)
    supervisor = Supervisor([], source)
    supervisor.exits.append(ProcessExit(1, 9, 7, ("python",)))
    supervisor.failures += supervisor.exits
    NodeWorkers(job, NodeSpec(1, 2, "node1", 1), source)._wait_for_others(supervisor, one)
    assert [(failure.words, failure.outside) for failure in one.failures] == [
        ("  rank 1 failed", False),
        ("  the job was ended there from outside", True),
    ]


def workers_of_two(backend: str = "static") -> NodeWorkers:
    job = Job(LaunchSettings(rdzv_backend=backend), ("python",), {}, HostInfo(1, 0), 1)
    return NodeWorkers(job, NodeSpec(0, 2, "node1", 1), EndsAtOnce())


def test_the_machine_that_failed_by_itself_is_blamed_and_not_the_first() -> None:
    zero, one = (peers_of(SharedBoard(), 0, HOSTS[:2]), NodeFailure(1, "node2", "  rank 1 failed", 137, order=SAID))
    zero.failures += [NodeFailure(0, "node1", "  rank 0 lost rank 1", 1, order=LOST_PEER), one]
    here = JobResult(2, ProcessExit(0, 9, 1, ("python",)))
    judged = workers_of_two()._judge(here, zero)
    assert (judged.elsewhere, judged.first, judged.code) == (one, None, 137)


@pytest.mark.parametrize(("status", "told"), [(1, 2), (-6, 1)])
def test_what_a_rank_elsewhere_has_lost_is_announced_though_it_ends_later(status: int, told: int) -> None:
    """The root cause: the rank that lost it may end before it, and be heard of first."""
    one = peers_of(SharedBoard(), 1, HOSTS[:2])
    one.publish("failures", asdict(NodeFailure(0, "node1", "  rank 0 lost rank 1", 1, order=LOST_PEER)))
    one.look()
    supervisor = Supervisor([], EndsAtOnce())
    supervisor.failures.append(ProcessExit(1, 9, status, ("python",)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Supervisor, "step", lambda *_: True)
        workers_of_two()._watch(supervisor, one)
    one.look()
    assert [failure.machine for failure in one.failures] == [0, 1][:told]


def test_a_stopped_launcher_waits_for_the_cause_of_a_lost_peer_anew() -> None:
    """T26: a process of this machine may be what was lost, and is still to say why."""
    one, supervisor, clock, ended = peers_of(SharedBoard(), 1, HOSTS[:2]), Supervisor([], EndsAtOnce()), [0.0], []

    def step(*_: object) -> bool:
        clock[0] += 0.1
        if 0.25 < clock[0] < 0.35:
            clock[0] += 3
            one.publish("failures", asdict(NodeFailure(0, "node1", "  rank 0 lost rank 1", 1, order=LOST_PEER)))
        return clock[0] > 8

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_workers, "time", SimpleNamespace(monotonic=lambda: clock[0]))
        patch.setattr(Supervisor, "step", step)
        patch.setattr(Supervisor, "end_others", lambda *_, **__: ended.append(clock[0]))
        workers_of_two()._watch(supervisor, one)
    assert ended[0] == pytest.approx(3.3 + PEER_S, abs=0.15)


def test_a_launcher_that_is_ended_while_it_waits_has_128_and_the_signal() -> None:
    said: list[str] = []
    workers, peers = workers_of_two(), peers_of(SharedBoard(), 0, HOSTS[:2])
    workers._peers = peers
    assert workers.leave(Interrupted(signal.SIGTERM, "machine 1, node2 to end"), said.append).code == 143
    peers.look()
    assert [(failure.code, failure.outside) for failure in peers.failures] == [(143, True)]
    assert said[0].endswith("by SIGTERM from outside, while this launcher waited for machine 1, node2 to end")


def test_what_ranks_have_left_is_ended_if_the_wait_is_interrupted() -> None:
    """The own processes had ended well by then."""
    ended: list[bool] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_runner, "end_job", lambda *_, **__: ended.append(True))
        patch.setattr(Supervisor, "well", True)
        job = Job(LaunchSettings(), ("python",), {}, HostInfo(1, 0), 1)
        with pytest.raises(Interrupted), job_runner.supervised(job, EndsAtOnce(), None, attempt=0):
            raise Interrupted(signal.SIGTERM, "machine 1, node2 to end")
    assert ended
