"""Faults are drawn from a seed, and only where they can happen."""

import pytest
from accel_chaos.faults import KINDS, Occurrence, draw
from accel_state.errors import CannotRun

PLACES = [
    Occurrence(phase, rank, step, workers=rank == 1)
    for phase in ("start", "forward", "backward", "save", "evaluation")
    for rank in (0, 1)
    for step in ((0,) if phase == "start" else range(1, 20))
]


def test_a_seed_draws_the_same_faults_again() -> None:
    drawn = [draw(12, list(KINDS), PLACES, seed=seed, world=2) for seed in (3, 3, 4)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert [fault.number for fault in drawn[0]] == list(range(1, 13))
    assert [fault.step for fault in drawn[0]] == sorted(fault.step for fault in drawn[0])


def test_a_fault_happens_only_where_it_can() -> None:
    drawn = draw(400, list(KINDS), PLACES, seed=0, world=2)
    assert {fault.kind for fault in drawn} == KINDS.keys()
    assert {fault.rank for fault in drawn if fault.kind == "worker-killed"} == {1}
    assert {fault.phase for fault in drawn if fault.kind == "full-disk"} == {"save"}
    frozen = [fault.step for fault in drawn if fault.kind == "SIGSTOP-forever" and fault.phase != "start"]
    assert max(frozen) < 19, "nobody waits after the last step"
    assert not any(fault.kind == "SIGSTOP-forever" for fault in draw(200, list(KINDS), PLACES, seed=0, world=1))


def test_places_are_taken_in_turn() -> None:
    drawn = draw(4, ["SIGKILL"], PLACES, seed=0, world=2, at=[("backward", 3), ("step", 9)])
    assert [fault.step for fault in drawn] == [3, 3, 9, 9]
    assert drawn[0].phase == drawn[1].phase == "backward"


def test_a_place_that_the_run_never_had_is_refused() -> None:
    with pytest.raises(CannotRun, match="no fault of kind full-disk can happen at forward:3: the undisturbed run had"):
        draw(1, ["full-disk"], PLACES, seed=0, world=2, at=[("forward", 3)])
