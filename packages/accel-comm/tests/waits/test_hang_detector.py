"""What many ranks ask of the store, and what they find; in one process, with a clock that is a number."""

from dataclasses import asdict

import pytest
from accel_comm.hang_detector import HEARTBEAT_S, LATE_S, LOOK_S, Wait
from accel_comm.hang_diagnosis import GONE_S, RankStatus
from accel_comm.status_store import BEAT, DIAGNOSED, END, QUESTION, Heartbeat
from hypothesis import given
from hypothesis import strategies as st
from simulated_ranks import SimulatedJob, waiting_since

#: seconds of the simulated job within which a hang is found, and everybody has left
SOON_S = 12.0


def odd(rank: int) -> str:
    return "gather" if rank % 2 else "reduce (sum)"


def alike(rank: int) -> str:
    return "gather"


@pytest.mark.parametrize("size", [2, 8, 512])
def test_ranks_that_do_not_wait_ask_once_in_five_seconds(size: int) -> None:
    """A5: 0.2 requests a second and rank."""
    assert SimulatedJob(size).run(100) / size / 100 <= 0.2


def test_a_diagnosis_takes_a_few_requests_of_each_rank() -> None:
    """A5, T4: all wait for each other; from the first second of the wait until nobody is left, everything counted."""
    job, size = SimulatedJob(512), 512
    job.run(20)
    assert job.run(60, waiting_since(job.now), odd) <= 20 * size
    ((_, at, diagnosis),) = job.told
    assert diagnosis.text.startswith("all ranks wait for each other\n")
    assert diagnosis.text.count("\n  rank ") == size
    assert at - 20 <= SOON_S
    assert len(job.left) == size
    assert max(job.left.values()) - 20 <= SOON_S


def test_of_ranks_that_would_ask_at_the_same_moment_one_does() -> None:
    """A5: each of them has read that nobody has asked."""
    job = SimulatedJob(512, at_once=True)
    job.run(20)
    assert job.run(60, waiting_since(job.now), odd) <= 20 * 512
    assert len(job.told) == 1
    assert len(job.left) == 512
    job.store.before = None
    assert job.status_stores[0].heartbeat().questions <= 3


@pytest.mark.parametrize(("size", "limit"), [(2, 600), (2, 601), (2, 602), (2, 603), (2, 604), (512, 600)])
def test_the_limit_is_kept_and_costs_a_few_requests_of_each_rank(size: int, limit: int) -> None:
    """A5, T4: one rank works, and is asked for its line before the limit; all are gone soon after it."""
    job = SimulatedJob(size, limit_s=limit)
    doing = waiting_since(0, *range(1, size))
    job.run(limit - HEARTBEAT_S - 2 * LATE_S, doing, alike)
    told = len(job.told)
    assert job.run(60, doing, alike) <= 20 * size
    ((_, at, diagnosis),) = job.told[told:]
    assert diagnosis.text.startswith(f"a wait has lasted {limit} s, and {limit} s is its limit\n")
    assert f"at train.py:0\n  rank 1 has been waiting for {limit} s in gather" in diagnosis.text
    assert at <= limit + 1
    assert len(job.left) == size
    assert max(job.left.values()) <= limit + 5


def test_a_long_wait_is_told_a_few_times_and_costs_little() -> None:
    """T26: half an hour of work of the main process, for which 63 others wait without a limit."""
    job = SimulatedJob(64, limit_s=5)
    assert job.run(1800, waiting_since(0, *range(1, 64), patient=True), alike) / 64 / 1800 < 1
    assert (job.told, job.left) == ([], {})
    job = SimulatedJob(64, limit_s=3600)
    assert job.run(1800, waiting_since(0, *range(1, 64)), alike) / 64 / 1800 < 0.25
    assert [round(at, -1) for _, at, _ in job.told] == [60, 120, 240, 480, 960]


def test_the_rank_that_looks_may_be_lost() -> None:
    """Another takes the next look, and goes on with what the first has found."""
    job = SimulatedJob(8, limit_s=40)
    job.run(LOOK_S, waiting_since(0), odd)
    asking = [rank for rank, one in enumerate(job.detectors) if one._question is not None]
    assert len(asking) == 1
    job.silent.update(asking)
    job.run(60, None, odd)
    ((_, _, diagnosis),) = job.told
    assert f"\n  rank {asking[0]} does not answer" in diagnosis.text
    assert len(job.left) == 7


def test_a_claim_without_a_question_holds_up_one_look() -> None:
    """A process may be gone between the two."""
    job = SimulatedJob(64, at_once=True)
    job.status_stores[0].count("claim/0/0", 1)
    assert job.run(60, waiting_since(0), odd) <= 30 * 64
    assert len(job.told) == 1
    assert len(job.left) == 64


def test_an_end_is_noticed_in_the_middle_of_a_long_wait() -> None:
    """T4: early `break`; the next look by itself would be at 480 s."""
    job = SimulatedJob(4)
    job.run(250, waiting_since(0, 0, 1, 2), alike)
    told = len(job.told)
    job.silent.add(3)
    job.status_stores[3].post("status/3", asdict(RankStatus(3, ended=True)))
    job.status_stores[3].heartbeat(END)
    job.run(30)
    ((_, at, diagnosis),) = job.told[told:]
    assert diagnosis.text.startswith("rank 3 has ended, and others wait for it\n")
    assert at - 250 <= SOON_S


def test_ranks_that_end_together_make_no_storm_of_looks() -> None:
    """511 ranks wait for one, which is slow; half of them end (their last exchange was a later one)."""
    size = 512
    job = SimulatedJob(size)
    doing = waiting_since(0, *range(1, size))
    job.run(100, doing, alike)
    for rank in range(size // 2, size):
        job.silent.add(rank)
        job.status_stores[rank].post(f"status/{rank}", asdict(RankStatus(rank, 2, ended=True)))
        job.status_stores[rank].heartbeat(END)
    assert job.run(30, doing, alike) <= 30 * size
    assert job.left == {}


def test_a_rank_that_is_gone_without_a_word_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """T14."""
    monkeypatch.setattr("accel_comm.status_store._lives", lambda pid: False)
    job = SimulatedJob(4)
    job.silent.add(3)
    job.run(100, waiting_since(0, 0, 1, 2), alike)
    ((_, at, diagnosis),) = job.told
    assert diagnosis.text.startswith("rank 3 is gone, and others wait for it\n")
    assert at <= 2 * GONE_S + SOON_S
    assert set(job.left) == {0, 1, 2}


def test_waits_that_end_are_looked_into_and_forgotten() -> None:
    """Fault test 34: every ten seconds another exchange, of which each takes eight."""
    job = SimulatedJob(16)

    def doing(rank: int, now: float) -> Wait | None:
        number, seconds = divmod(now, 10)
        return Wait(int(number) + 1, seconds) if seconds < 8 and rank else None

    job.run(200, doing, odd)
    assert (job.told, job.left) == ([], {})


@given(st.integers(0, 2**20 - 1), st.integers(0, 2**18 - 1), st.integers(0, 2**24 - 1), st.booleans())
def test_one_number_says_four_things(questions: int, ends: int, beats: int, diagnosed: bool) -> None:
    number = questions * QUESTION + ends * END + beats * BEAT + diagnosed * DIAGNOSED
    assert number < 2**63
    assert Heartbeat.of(number) == (questions, ends, beats, diagnosed)
