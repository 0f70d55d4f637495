"""What is diagnosed to be a wait in vain, and what is not."""

import json
from dataclasses import asdict, replace

import pytest
from accel_comm.hang_diagnosis import GONE_S, STANDS_S, Diagnosis, RankStatus, diagnose
from hypothesis import given
from hypothesis import strategies as st

LIMIT, NOTICE = 100.0, 60.0
Statuses = list[RankStatus | None]


def waiting(
    rank: int, seconds: float = 10.0, what: str = "gather", *, number: int = 3, patient: bool = False
) -> RankStatus:
    return RankStatus(rank, number, what, f"{what} at train.py:{rank + 10}", seconds, patient, "torch.py:1")


def working(rank: int) -> RankStatus:
    return RankStatus(rank, 2, "reduce", "reduce at train.py:5", doing="data.py:7 in load: time.sleep(9)")


def diagnosed(
    statuses: Statuses, before: Statuses | None = None, alive: list[bool | None] | None = None
) -> Diagnosis | None:
    waits: list[int | None] = [None] * len(statuses)
    for status in before or ():
        if status is not None and status.waits is not None:
            waits[status.rank] = status.number
    return diagnose(statuses, waits, alive or [True] * len(statuses), limit=LIMIT, notice=NOTICE)


def test_where_nobody_waits_all_is_well() -> None:
    assert diagnosed([working(0), RankStatus(1, ended=True)], alive=[True, False]) is None
    assert diagnosed([None, None]) is None


@pytest.mark.parametrize("lives", [True, None])
def test_a_wait_for_one_that_works_is_no_fault(lives: bool | None) -> None:
    """Fault test 34: a slow rank is not a lost one, on this machine or on another."""
    statuses: Statuses = [waiting(0), working(1)]
    assert diagnosed(statuses, statuses, [True, lives]) is None
    assert diagnosed([waiting(0), None], [waiting(0), None], [True, lives]) is None


def test_a_wait_for_one_that_is_gone_is_in_vain() -> None:
    """T14: where exchanges do not fail by themselves; one that left without a word may have been through."""
    assert diagnosed([waiting(0, GONE_S - 1), None], alive=[True, False]) is None
    diagnosis = diagnosed([waiting(0, GONE_S), None], alive=[True, False])
    assert diagnosis is not None
    assert diagnosis.fatal
    lines = diagnosis.text.splitlines()
    assert lines[0] == "rank 1 is gone, and others wait for it"
    assert lines[1] == "  rank 0 has been waiting for 30 s in gather at train.py:10 (exchange 3)"
    assert lines[2] == "  rank 1 is gone"


def test_one_that_ended_after_an_exchange_is_not_missed_in_it() -> None:
    """Fault test 34: it was through, and others still wait for one that is slow."""
    assert diagnosed([waiting(0, 20.0), working(1), RankStatus(2, 3, ended=True)]) is None
    assert diagnosed([waiting(0, 20.0), working(1), RankStatus(2, 2, ended=True)]) is not None


def test_a_wait_for_one_that_has_ended_is_in_vain() -> None:
    """T4: early `break` of a rank."""
    diagnosis = diagnosed([RankStatus(0, ended=True), waiting(1), RankStatus(2, ended=True)])
    assert diagnosis is not None
    assert diagnosis.fatal
    assert diagnosis.text.startswith("rank 0, 2 has ended, and others wait for it\n  rank 0 has come to the end")


def test_ranks_that_wait_in_different_calls_wait_for_each_other() -> None:
    """T4: found long before the limit."""
    now: Statuses = [waiting(0, 6.0), waiting(1, 7.0, "main_process_first", patient=True)]
    before: Statuses = [waiting(0, 3.0), waiting(1, 4.0, "main_process_first", patient=True)]
    diagnosis = diagnosed(now, before)
    assert diagnosis is not None
    assert diagnosis.fatal
    assert diagnosis.text.splitlines()[:3] == [
        "all ranks wait for each other",
        "  rank 0 has been waiting for 6 s in gather at train.py:10 (exchange 3)",
        "  rank 1 has been waiting for 7 s in main_process_first at train.py:11 (exchange 3)",
    ]


@pytest.mark.parametrize(
    ("now", "before"),
    [
        ([waiting(0), waiting(1)], [waiting(0), waiting(1)]),
        ([waiting(0), waiting(1, what="a")], None),
        ([waiting(0), waiting(1, what="a", number=4)], [waiting(0), waiting(1, what="a")]),
        ([waiting(0), waiting(1, what="a")], [waiting(0), working(1)]),
        ([waiting(0), waiting(1, what="a")], [waiting(0), None]),
        ([waiting(0), waiting(1, STANDS_S - 0.1, "a")], [waiting(0), waiting(1, 2.0, "a")]),
        ([waiting(0), waiting(1, what="a"), working(2)], [waiting(0), waiting(1, what="a"), working(2)]),
        ([waiting(0), waiting(1, what="a"), None], [waiting(0), waiting(1, what="a"), None]),
    ],
    ids=["same call", "one look", "moved on", "just came", "silent before", "not long", "one works", "one is silent"],
)
def test_ranks_that_may_still_move_do_not_wait_for_each_other(now: Statuses, before: Statuses | None) -> None:
    """Fault test 34."""
    assert diagnosed(now, before) is None


def test_a_wait_for_one_that_had_no_need_of_the_exchange_is_in_vain() -> None:
    """The number and the name of the exchange have to be those that are waited for."""
    for skipped in ({"a": [2, 5]}, {"gather": [2, 3]}, {"gather": [4, 9]}):
        assert diagnosed([waiting(0), replace(working(1), skipped=skipped)]) is None
    for other in (working(1), RankStatus(1, 2, ended=True)):
        diagnosis = diagnosed([waiting(0), replace(other, skipped={"gather": [2, 4]})])
        assert diagnosis is not None
        assert diagnosis.fatal
        assert diagnosis.text.startswith("a rank needs an exchange that others do not\n  rank 0 has been waiting for ")


def test_a_wait_ends_at_its_limit() -> None:
    """T4, fault test 28: each rank is named, with what it does."""
    assert diagnosed([waiting(0, LIMIT - 0.1, patient=True), working(1)]) is None
    diagnosis = diagnosed([working(0), waiting(1, LIMIT), None])
    assert diagnosis is not None
    assert diagnosis.fatal
    lines = diagnosis.text.splitlines()
    assert lines[:4] == [
        "a wait has lasted 100 s, and 100 s is its limit",
        "  rank 0 is in no exchange of accel's, but at data.py:7 in load: time.sleep(9); its last was reduce at"
        " train.py:5 (exchange 2)",
        "  rank 1 has been waiting for 100 s in gather at train.py:11 (exchange 3)",
        "  rank 2 does not answer: it is stopped, or in code that never lets go of Python",
    ]
    assert "InitProcessGroupKwargs(timeout=...)" in lines[-1]


def test_the_first_wait_of_a_job_is_judged_like_any_other() -> None:
    diagnosis = diagnosed([RankStatus(0, doing="train.py:1 in <module>"), waiting(1, LIMIT, number=1)])
    assert diagnosis is not None
    assert "rank 0 is in no exchange of accel's, but at train.py:1 in <module>\n" in diagnosis.text


def test_a_long_wait_is_told_before_it_is_ended() -> None:
    assert diagnosed([waiting(0, NOTICE - 1), working(1)]) is None
    diagnosis = diagnosed([waiting(0, NOTICE), working(1)])
    assert diagnosis is not None
    assert not diagnosis.fatal
    assert diagnosis.text.startswith("a wait has lasted 60 s (its limit is 100 s)\n  rank 0 has been waiting for 60 s")


@given(st.floats(0, 1e6), st.integers(0, 3))
def test_a_patient_wait_has_no_limit(seconds: float, worker: int) -> None:
    """T26: unlimited while the first one lives."""
    statuses: Statuses = [waiting(rank, seconds, "main_process_first", patient=True) for rank in range(4)]
    statuses[worker] = working(worker)
    assert diagnosed(statuses, statuses) is None


@pytest.mark.parametrize("over", [working(2), RankStatus(2, ended=True), None])
def test_a_patient_wait_is_only_for_the_one_that_goes_first(over: RankStatus | None) -> None:
    """T26: `local_main_process_first` of one machine, when the processes of another are at their end."""
    statuses: Statuses = [working(0), waiting(1, what="main_process_first (after rank 0)", patient=True), over]
    assert diagnosed(statuses, alive=[True, True, over is not None and not over.ended]) is None


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.floats(0, 200), st.booleans()), min_size=1, max_size=6))
def test_a_diagnosis_names_every_rank(kinds: list[tuple[str, float, bool]]) -> None:
    """T4: one report with all ranks, whatever they do; and no diagnosis ever without one that waits."""
    statuses: Statuses = []
    for rank, (kind, seconds, patient) in enumerate(kinds):
        some = {"a": waiting(rank, seconds, patient=patient), "b": waiting(rank, seconds, "reduce"), "c": working(rank)}
        statuses.append(RankStatus(rank, ended=True) if kind == "d" else some.get(kind))
    diagnosis = diagnosed(statuses, statuses)
    if diagnosis is None:
        return
    assert any(one is not None and one.waits is not None for one in statuses)
    rows = diagnosis.text.splitlines()[1 : 1 + len(kinds)]
    assert [row.split()[:2] for row in rows] == [["rank", str(rank)] for rank in range(len(kinds))]


@given(
    st.builds(
        RankStatus, st.integers(0, 9), waits=st.none() | st.floats(0, 9), doing=st.text(), call=st.none() | st.text()
    )
)
def test_a_status_comes_back_from_json(status: RankStatus) -> None:
    assert RankStatus(**json.loads(json.dumps(asdict(status)))) == status
    assert replace(status, ended=True) != status


def moving(rank: int, number: int, what: str = "all_gather") -> RankStatus:
    """One that waits for tensors."""
    return RankStatus(rank, number, what, f"{what} at train.py:{rank + 10}", 10.0, False, "torch.py:1", moves=True)


def test_who_still_receives_what_others_have_is_left_alone() -> None:
    """A large broadcast goes from rank to rank: those that have it stand in the next call already."""
    statuses: Statuses = [waiting(0, number=7), moving(1, 6, "broadcast"), waiting(2, number=7)]
    assert diagnosed(statuses, statuses) is None
    torn: Statuses = [waiting(0, number=7), moving(1, 6, "broadcast"), moving(2, 6, "all_gather")]
    diagnosis = diagnosed(torn, torn)
    assert diagnosis is not None
    assert diagnosis.fatal
    ahead: Statuses = [moving(0, 7), waiting(1, what="reduce", number=6)]
    diagnosis = diagnosed(ahead, ahead)
    assert diagnosis is not None
    assert diagnosis.fatal
