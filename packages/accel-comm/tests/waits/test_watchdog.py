"""A thread that looks into waits, says once what is wrong, and ends the job."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest.mock import Mock

import pytest
import simulated_time
from accel_comm import flight_recorder, hang_diagnosis, watchdog
from accel_comm.flight_recorder import FlightRecorder
from accel_comm.status_store import DIAGNOSED, QUESTION, StatusStore
from accel_comm.transports import peer_errors
from accel_comm.watchdog import Watchdog, own_status, users_line
from accel_testing import stretched
from simulated_time import SimulatedTime
from torch._C._distributed_c10d import HashStore

LONG_S = 1000.0


@dataclass
class Job:
    """Ranks in one process: each has a status store, a flight recorder and, once started, a watchdog."""

    time: SimulatedTime = field(default_factory=SimulatedTime)
    store: Any = field(default_factory=HashStore)
    status_stores: list[StatusStore] = field(default_factory=list)
    recorders: list[FlightRecorder] = field(default_factory=list)
    watches: dict[int, Watchdog] = field(default_factory=dict)
    left: set[int] = field(default_factory=set)

    def of(self, size: int) -> "Job":
        self.status_stores = [StatusStore(self.store, rank) for rank in range(size)]
        self.recorders = [FlightRecorder() for _ in range(size)]
        return self

    def watchdog(self, rank: int, *, limit_s: float = LONG_S) -> Watchdog:
        size = len(self.status_stores)
        made = Watchdog(
            self.status_stores[rank],
            self.recorders[rank],
            size,
            limit_s=limit_s,
            leave=lambda: self.left.add(rank),
        )
        self.watches[rank] = made
        return self.time.rules(made)

    def start(self, *ranks: int, limit_s: float = LONG_S) -> None:
        for rank in ranks:
            self.watchdog(rank, limit_s=limit_s).start()

    def leaves(self, *ranks: int, within_s: float = 2 * LONG_S) -> bool:
        """Whether just these ranks leave."""
        self.time.advance(within_s, until=lambda: self.left == set(ranks))
        return self.left == set(ranks)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    """A job whose time passes when the test says so."""
    one = Job()
    for module in (watchdog, flight_recorder):
        monkeypatch.setattr(module, "time", one.time)
    monkeypatch.setattr(watchdog, "is_in_wait", lambda _: True)  # no thread is in an exchange that has begun
    yield one
    for each in one.watches.values():
        if each._thread.is_alive():
            each.close()


def reports(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return ["accel:" + one for one in capfd.readouterr().err.split("accel:")[1:]]


def test_a_wait_that_is_too_long_ends_the_job_with_one_report(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    """T4: one report names both ranks, and the line that each is at."""
    job.of(2)
    site = job.recorders[0].begin("gather")
    job.start(0, 1, limit_s=40)
    assert job.leaves(0, 1)
    (report,) = reports(capfd)
    assert report.startswith("accel: a wait has lasted 40 s, and 40 s is its limit\n")
    assert f"  rank 0 has been waiting for 40 s in gather at {site} (exchange 1)\n" in report
    assert f"  rank 1 is in no exchange of accel's, but at {simulated_time.__file__}:" in report


def test_no_rank_tells_of_a_loss_before_its_watchdog_ends_it(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a group that the script has opened, exchanges fail at the limit of the watchdog."""
    job.of(9).recorders[0].begin("gather")
    job.start(*range(9), limit_s=40)
    job.time.advance(40 + peer_errors.CLOSES_S)
    assert job.left == set()
    monkeypatch.setattr(peer_errors, "time", SimpleNamespace(sleep=job.time.advance))
    peer_errors.PeerErrors(0, job.recorders[0], job.status_stores[0]).error("Timed out")
    assert job.left == set(range(9))


def test_a_wait_that_is_over_in_time_is_nothing(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    """Fault test 34: looked into again and again, and well."""
    job.of(2).recorders[0].begin("gather")
    job.start(0, 1)
    job.time.advance(40)
    assert job.status_stores[0].heartbeat().questions > 2
    job.recorders[0].end()
    job.time.advance(5)
    asked = job.status_stores[0].heartbeat().questions
    job.time.advance(40)
    assert job.status_stores[0].heartbeat().questions == asked
    assert (job.left, reports(capfd)) == (set(), [])


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_that_wait_for_each_other_are_found_before_the_limit(
    size: int, job: Job, capfd: pytest.CaptureFixture[str]
) -> None:
    """T4, T26: a patient one as well."""
    whats = ["gather", "main_process_first (after rank 0)", "reduce (sum)"][:size]
    sites = [one.begin(what, patient="first" in what) for one, what in zip(job.of(size).recorders, whats, strict=True)]
    began = job.time.now
    job.start(*range(size))
    assert job.leaves(*range(size))
    (report,) = reports(capfd)
    assert report.startswith("accel: all ranks wait for each other\n")
    for rank, (what, site) in enumerate(zip(whats, sites, strict=True)):
        told = rf"\n  rank {rank} has been waiting for \d+ s in {re.escape(f'{what} at {site}')} \(exchange 1\)\n"
        assert re.search(told, report)
    assert job.time.now - began < 20


def test_ranks_that_wait_in_the_same_call_are_left_alone(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    """What is the same on all of them is on its way, however slow."""
    for recorder in job.of(2).recorders:
        recorder.begin("all_reduce (sum)")
    job.start(0, 1)
    job.time.advance(50)
    assert (job.left, reports(capfd)) == (set(), [])


def test_a_patient_wait_outlasts_the_limit(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    """T26."""
    job.of(2).recorders[1].begin("main_process_first", patient=True)
    job.start(0, 1, limit_s=20)
    job.time.advance(59)  # then it is told
    assert (job.left, reports(capfd)) == (set(), [])


def test_a_wait_for_one_that_is_gone_ends(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    """T14."""
    gone = subprocess.Popen([sys.executable, "-S", "-c", ""])
    gone.wait()
    job.of(2).status_stores[0].post(f"host/{job.status_stores[0].host}", [1, gone.pid])
    job.recorders[0].begin("gather")
    job.start(0)
    assert job.leaves(0)
    (report,) = reports(capfd)
    assert report.startswith("accel: rank 1 is gone, and others wait for it\n")
    assert report.splitlines()[2] == "  rank 1 is gone"


def test_a_wait_for_one_that_has_ended_ends(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    """T4: early `break`."""
    job.of(2)
    job.start(0, 1)
    job.watches[1].close()
    job.recorders[0].begin("gather")
    assert job.leaves(0)
    (report,) = reports(capfd)
    assert report.startswith("accel: rank 1 has ended, and others wait for it\n")
    assert "\n  rank 1 has come to the end of its script\n" in report


@pytest.mark.parametrize("ends", [True, False])
def test_a_rank_that_waits_in_what_another_has_left_out_is_found(
    ends: bool, job: Job, capfd: pytest.CaptureFixture[str]
) -> None:
    """T4: however many exchanges it has left out since, and at its end too."""
    recorder = job.of(2).recorders[1]
    recorder.begin("used")
    recorder.end()
    for _ in range(3):
        recorder.skip("used")
        for _ in range(1000):
            recorder.skip("of another model")
    job.start(0, 1)
    if ends:
        job.watches[1].close()
    job.recorders[0].number = 1
    job.recorders[0].begin("used")
    assert job.leaves(*([0] if ends else [0, 1]), within_s=20)
    (report,) = reports(capfd)
    assert report.startswith("accel: a rank needs an exchange that others do not\n")


def test_nothing_is_asked_of_a_rank_0_that_is_stopped(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may go on, and a request that it does not answer for long would close the connection."""
    job.of(2)
    job.recorders[1].begin("gather")
    with monkeypatch.context() as patch:
        patch.setattr(StatusStore, "is_stopped", lambda _: True)
        patch.setattr(StatusStore, "heartbeat", Mock(side_effect=RuntimeError))
        job.start(0, 1, limit_s=40)
        job.time.advance(100)
    assert job.leaves(0, 1)


def test_ranks_that_end_while_one_looks_end_well(
    job: Job, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault test 34: rank 0 has waited for rank 1 at the last barrier; rank 1 comes, and both are done."""
    job.of(2).recorders[0].begin("wait_for_everyone")
    made = job.watchdog(0)

    def posted(store: StatusStore, name: str, note: Any) -> None:
        store._ask("set", store._prefix + name, json.dumps(note))
        if name == "status/0" and note["asked"]:
            job.recorders[0].end()
            post(store, "status/1", asdict(hang_diagnosis.RankStatus(1, ended=True)))

    post = StatusStore.post
    monkeypatch.setattr(StatusStore, "post", posted)
    made.start()
    job.time.advance(40)
    assert (job.left, reports(capfd)) == (set(), [])


def test_one_that_does_not_answer_is_named(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    """Fault test 28: a process that is stopped."""
    job.of(3).recorders[1].begin("gather")
    job.start(0, 1, limit_s=30)
    assert job.leaves(0, 1)
    (report,) = reports(capfd)
    assert "\n  rank 2 does not answer: it is stopped, or in code that never lets go of Python\n" in report


def test_a_long_wait_is_told_each_time_it_has_doubled(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    job.of(2).recorders[0].begin("gather")
    job.start(0, 1)
    job.time.advance(600)
    told = reports(capfd)
    assert len(told) == 4, "after 60, 120, 240 and 480 seconds, or at the next look"
    assert all("(its limit is 1000 s)\n  rank 0 has been waiting for" in one for one in told)
    assert job.left == set()


def test_a_diagnosis_of_another_is_obeyed_in_silence(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    job.of(2)
    job.start(1)
    job.status_stores[0].heartbeat(DIAGNOSED)
    assert job.leaves(1)
    assert reports(capfd) == []


def test_a_watch_answers_others_while_its_own_process_works(job: Job) -> None:
    job.of(2)
    job.start(1)
    job.recorders[1].begin("reduce (mean)", "float32[2]")
    job.recorders[1].end()
    asked = job.status_stores[0].heartbeat(QUESTION).questions
    job.time.advance(6)
    note = job.status_stores[0].read("status/1")
    assert note["asked"] == asked
    status = hang_diagnosis.RankStatus(**note)
    assert (status.rank, status.number, status.waits, status.ended) == (1, 1, None, False)
    assert status.call is not None
    assert status.call.startswith(f"reduce (mean) of float32[2] at {__file__}:")


def test_rank_0_gives_signs_of_life(job: Job) -> None:
    """T26: what the first process is known by on another machine."""
    job.of(2)
    job.start(0, 1)
    job.time.advance(26)
    assert job.status_stores[1].heartbeat().beats == 5
    assert job.status_stores[1].heartbeat().questions == 0


def test_closing_is_told_and_done_once(job: Job) -> None:
    job.of(2)
    job.start(1)
    job.watches[1].close()
    job.watches[1].close()
    assert job.status_stores[0].ended() == {1: None}
    assert not any(thread.name == "accel-watchdog" for thread in threading.enumerate())


def test_a_store_that_is_gone_ends_the_watch_in_silence(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.of(2)

    def lost(*_: object) -> NoReturn:
        raise RuntimeError("Connection was likely closed")

    monkeypatch.setattr(StatusStore, "heartbeat", lost)
    job.start(0)
    job.time.advance(20)
    assert not job.watches[0]._thread.is_alive()
    assert job.left == set()


def test_a_clock_that_is_set_makes_no_wait_long(
    job: Job, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault test 38."""
    job.of(2).recorders[0].begin("gather")
    later = time.time() + 2 * LONG_S
    monkeypatch.setattr(time, "time", lambda: later)
    job.start(0, 1)
    job.time.advance(40)
    assert (job.left, reports(capfd)) == (set(), [])


def test_the_users_own_line_is_told_where_a_library_sleeps() -> None:
    """T4: a slow loader; the line is in the user's dataset, not in torch."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    awake = threading.Event()

    class Slow(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> torch.Tensor:
            awake.wait()  # sleeps
            return torch.ones(1)

    number = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if text.endswith("# sleeps"))
    wanted = f"{__file__}:{number} in __getitem__: awake.wait()  # sleeps"
    thread = threading.Thread(target=lambda: list(DataLoader(Slow())))
    thread.start()
    until = time.monotonic() + stretched(60)
    while (line := users_line(sys._current_frames()[thread.ident or 0])) != wanted and time.monotonic() < until:
        time.sleep(0.001)
    awake.set()
    thread.join()
    assert line == wanted


def test_a_stack_without_a_line_of_the_users_is_told_by_its_innermost() -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    line = users_line(sys._current_frames()[thread.ident or 0])
    over.set()
    thread.join()
    assert f"{os.sep}threading.py:" in line


def test_a_training_in_a_thread_is_told_by_the_line_of_that_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A main thread that waits for it, as under an engine, is in no exchange."""
    recorder, begun, over = FlightRecorder(), threading.Event(), threading.Event()
    assert "test_watchdog.py" in own_status(0, recorder).doing

    def train() -> None:
        recorder.begin("gather")
        begun.set()
        over.wait()  # trains

    thread = threading.Thread(target=train)
    thread.start()
    begun.wait()
    monkeypatch.setattr(watchdog, "is_in_wait", lambda frame: frame.f_code.co_filename == threading.__file__)
    status = own_status(0, recorder)
    over.set()
    thread.join()
    assert status.waits is not None
    assert own_status(0, recorder).doing == "its end"
