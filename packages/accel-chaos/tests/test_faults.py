"""Faults are drawn from a seed, and only where they can happen."""

import pytest
from accel_chaos.faults import KINDS, Fault, draw
from accel_state.errors import CannotRun

OF_WORKERS = {"worker-killed", "SIGKILL", "SIGSTOP", "SIGSTOP-forever", "segfault"}
PLACES = [
    Fault(phase, rank, step)
    for phase in ("start", "forward", "backward", "save", "evaluation", "loader-worker")
    for rank in (0, 1)
    for step in ((0,) if phase == "start" else range(1, 20))
]


def test_a_seed_draws_the_same_faults_again() -> None:
    drawn = [draw(12, list(KINDS), PLACES, seed=seed) for seed in (3, 3, 4)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert [fault.number for fault in drawn[0]] == list(range(1, 13))
    assert [fault.step for fault in drawn[0]] == sorted(fault.step for fault in drawn[0])


def test_a_fault_happens_only_where_it_can() -> None:
    drawn = draw(400, list(KINDS), PLACES, seed=0)
    assert {fault.kind for fault in drawn} == KINDS.keys()
    assert {fault.phase for fault in drawn if fault.kind == "worker-killed"} == {"loader-worker"}
    assert {fault.kind for fault in drawn if fault.phase == "loader-worker"} == OF_WORKERS
    assert {fault.phase for fault in drawn if fault.kind == "full-disk"} == {"save"}
    frozen = [fault.step for fault in drawn if fault.kind == "SIGSTOP-forever" and fault.phase != "start"]
    assert max(frozen) < 19, "nobody waits after the last step"


def test_faults_happen_at_the_place_that_is_asked_for() -> None:
    drawn = draw(4, ["SIGKILL"], PLACES, seed=0, at="backward:3")
    assert {(fault.phase, fault.step) for fault in drawn} == {("backward", 3)}
    assert {fault.step for fault in draw(4, ["SIGKILL"], PLACES, seed=0, at="step:9")} == {9}


def test_what_asks_a_job_to_stop_comes_after_its_first_step() -> None:
    assert min(fault.step for fault in draw(200, ["SIGTERM", "resize"], PLACES, seed=0)) > 0


def test_a_place_that_the_run_never_had_is_refused() -> None:
    with pytest.raises(
        CannotRun, match=r"full-disk cannot happen at forward:3: .* had 19 steps, and the phases .*back"
    ):
        draw(1, ["full-disk"], PLACES, seed=0, at="forward:3")
