"""What machines tell each other, over a store that is a mapping, and by a clock that stands still."""

import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from accel_launch.cli.options import LaunchSettings
from accel_launch.job.job import Job
from accel_launch.job.job_runner import JobRun
from accel_launch.job.plan import HostInfo
from accel_launch.nodes.node_spec import NodeSpec
from accel_launch.nodes.node_workers import NodeWorkers
from accel_launch.nodes.peers import SILENCE_S, NodeFailure, Peers
from accel_launch.report.job_result import LOST_PEER, SAID, JobResult, ProcessExit
from accel_launch.supervise.signals import Interrupted, SignalEvent, SignalSource
from accel_launch.supervise.supervisor import Supervisor

HOSTS = ("node1", "node2", "node3")


class MappingStore:
    """The requests of a store of torch that machines make."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def append(self, key: str, value: str) -> None:
        self.values[key] = self.values.get(key, "") + value

    def check(self, keys: list[str]) -> bool:
        return self.values.keys() >= set(keys)

    def get(self, key: str) -> bytes:
        return self.values[key].encode()

    def add(self, key: str, number: int) -> int:
        self.values[key] = str(int(self.values.get(key, "0")) + number)
        return int(self.values[key])


class Clock:
    """Stands for the module `time`; nobody may wait by it."""

    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        pytest.fail(f"waits for {seconds} s")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("accel_launch.nodes.peers.time", clock)
    return clock


def test_a_machine_that_gives_no_sign_of_life_is_announced_once(clock: Clock) -> None:
    store = MappingStore()
    zero, one, two = (Peers(store, machine, HOSTS) for machine in range(3))
    for second in range(30):
        clock.now_s += 1
        for peers in (zero, one, two)[: 3 if second < 5 else 2]:
            peers.look()
        silent_s = second - 5  # the first one has heard the last sign of life when it looked again
        assert [failure.machine for failure in zero.failures] == ([2] if silent_s > SILENCE_S else [])
    assert one.failures == zero.failures
    assert zero.failures[0].lost


def test_the_first_machine_waits_for_no_lost_one_to_leave(clock: Clock) -> None:
    """It would hold up the end of the job, which is to come soon after a loss."""
    store = MappingStore()
    zero, one, _ = (Peers(store, machine, HOSTS) for machine in range(3))
    for _ in range(9):
        clock.now_s += 1
        zero.look()
        one.look()
        store.add("beats 1", 1)
    assert [failure.machine for failure in zero.failures] == [2]
    one.leave()
    zero.leave()


class DyingStore(MappingStore):
    """The store of a machine that dies after a number of requests."""

    def __init__(self, values: dict[str, str], requests: int) -> None:
        self.values, self._left = values, requests

    def __getattribute__(self, name: str) -> Any:
        if name in ("set", "add", "append"):
            self._left -= 1
            if self._left < 0:
                raise SystemExit
        return super().__getattribute__(name)


@pytest.mark.parametrize("requests", range(3))
def test_a_machine_that_dies_telling_of_a_failure_keeps_nobody_waiting(requests: int, clock: Clock) -> None:
    """The others would take the first machine for lost, as its store does not answer."""
    store = MappingStore()
    zero, one = (Peers(store, machine, HOSTS[:2]) for machine in range(2))
    with suppress(SystemExit):
        Peers(DyingStore(store.values, requests), 1, HOSTS[:2]).announce("  rank 1 failed", 7)
    clock.now_s += 1
    assert zero.look() == one.look() == [NodeFailure(1, "node2", "  rank 1 failed", 7)] * (requests > 0)


class EndsAtOnce(SignalSource):
    """SIGTERM, at the first wait."""

    def __enter__(self) -> "EndsAtOnce":
        return self

    def __exit__(self, *error: object) -> None: ...

    def wait(self, timeout_s: float) -> SignalEvent | None:
        return SignalEvent(signal.SIGTERM, from_terminal=False)

    def in_child(self) -> None: ...


def test_a_signal_right_after_a_failure_ends_a_job_that_had_failed(clock: Clock, tmp_path: Path) -> None:
    """The failure came after the last look; the launcher may not say that it just waited for the other machine."""
    store, source = MappingStore(), EndsAtOnce()
    _, one = (Peers(store, machine, HOSTS[:2]) for machine in range(2))
    clock.now_s += 1
    one.look()
    one.announce("  rank 1 failed", 7)
    job = Job(LaunchSettings(), ("python",), {}, HostInfo(1, 0), 1)
    run = JobRun(job, Supervisor([], source), tmp_path, None)
    NodeWorkers(job, NodeSpec(1, 2, "node1", 1), source)._wait_for_others(run, one)
    assert [(failure.words, failure.outside) for failure in one.failures] == [
        ("  rank 1 failed", False),
        ("  the job was ended there from outside", True),
    ]


def workers_of_two(backend: str = "static") -> NodeWorkers:
    job = Job(LaunchSettings(rdzv_backend=backend), ("python",), {}, HostInfo(1, 0), 1)
    return NodeWorkers(job, NodeSpec(0, 2, "node1", 1), EndsAtOnce())


def test_the_machine_that_failed_by_itself_is_blamed_and_not_the_first(clock: Clock) -> None:
    zero, one = (Peers(MappingStore(), 0, HOSTS[:2]), NodeFailure(1, "node2", "  rank 1 failed", 137, order=SAID))
    zero.failures += [NodeFailure(0, "node1", "  rank 0 lost rank 1", 1, order=LOST_PEER), one]
    here = JobResult(2, ProcessExit(0, 9, 1, ("python",)))
    judged = workers_of_two()._judge(here, zero)
    assert (judged.elsewhere, judged.first, judged.code) == (one, None, 137)


def test_a_launcher_that_is_ended_while_it_waits_has_128_and_the_signal(clock: Clock) -> None:
    said: list[str] = []
    workers, peers = workers_of_two(), Peers(MappingStore(), 0, HOSTS[:2])
    workers._peers = peers
    assert workers.leave(Interrupted(signal.SIGTERM, "machine 1, node2 to end"), said.append).code == 143
    peers.look(at_once=True)
    assert [(failure.code, failure.outside) for failure in peers.failures] == [(143, True)]
    assert said[0].endswith("by SIGTERM from outside, while this launcher waited for machine 1, node2 to end")
