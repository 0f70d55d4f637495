"""Which of several failures is the root cause, and what is said of the other ranks; no process runs here."""

import signal
from dataclasses import replace

import pytest
from accel_launch.nodes.peers import NodeFailure
from accel_launch.report.failure_report import explain
from accel_launch.report.job_result import FailureCause, JobResult, ProcessExit, blame, root_cause

LOST = FailureCause("DistBackendError: connection closed", "train.py:4 in <module>: step()", "", lost_peer=True)
SAID = FailureCause("ValueError: no", "train.py:7 in <module>: raise", "Traceback\nValueError: no")


def ended(rank: int, status: int, cause: FailureCause | None = None) -> ProcessExit:
    return ProcessExit(rank, 100 + rank, status, ("py", "train.py"), cause=cause)


LOST_IT, ABORTED = ended(0, 1, LOST), ended(2, -signal.SIGABRT)


@pytest.mark.parametrize("cause", [ended(1, 1, SAID), ended(1, 3), ended(1, -signal.SIGKILL)])
@pytest.mark.parametrize("sooner", [(LOST_IT,), (ABORTED,), (LOST_IT, ABORTED)])
def test_the_root_cause_is_not_a_rank_that_lost_another(cause: ProcessExit, sooner: tuple[ProcessExit, ...]) -> None:
    assert root_cause([*sooner, cause]) is cause
    assert root_cause([cause, *sooner]) is cause


def test_of_failures_of_their_own_the_first_is_the_root_cause() -> None:
    first, second = ended(2, 3), ended(0, -signal.SIGKILL)
    assert root_cause([first, second]) is first
    assert root_cause([LOST_IT, ABORTED]) is LOST_IT
    assert root_cause([]) is None


def test_the_last_words_blame_the_root_cause_and_not_the_first() -> None:
    cause = ended(1, 1, SAID)
    result = blame(3, [LOST_IT, cause], [LOST_IT, cause], terminated=(2,), told={1})
    assert (result.first, result.failed, result.stopped) == (cause, (1,), (2,))
    words = explain(result) or ""
    assert "accel: rank 1 of 3 (pid 101) failed with exit code 1\n  ValueError: no\n" in words
    assert words.splitlines()[-1] == "  ended because of it: rank 2"


def test_after_a_signal_the_first_failure_by_time_is_told() -> None:
    cause = ended(1, 1, SAID)
    assert blame(2, [LOST_IT, cause], [LOST_IT, cause], outside=signal.SIGTERM).first is LOST_IT


def test_the_part_of_each_rank_in_the_end_is_told() -> None:
    """Rank 1 caused it, rank 3 failed as well, 0 had ended well, 2 and 4 were ended, 4 with a code of its own."""
    exits = [ended(0, 0), ended(1, 3), ended(3, 1, SAID), ended(2, -signal.SIGTERM), ended(4, 9)]
    result = blame(5, exits, [exits[1], exits[2], exits[4]], terminated=(2, 3, 4), told={3})
    assert (result.first, result.done, result.failed, result.stopped) == (exits[1], (0,), (1, 3), (2, 4))
    words = (explain(result) or "").splitlines()
    assert words[-3:] == [
        "  had ended before, with exit code 0: rank 0",
        "  failed as well: rank 3",
        "  ended because of it: rank 2, 4",
    ]


def test_the_end_of_ranks_of_this_machine_by_another_is_told() -> None:
    there = NodeFailure(1, "node2", "accel: rank 3 of 4 (pid 9) failed with exit code 3", 3)
    result = replace(blame(4, [ended(0, -signal.SIGTERM)], [], terminated=(0, 1)), elsewhere=there)
    assert (explain(result) or "").splitlines()[-1] == "  ended here because of it: rank 0, 1"


def test_nothing_that_is_told_is_sent_to_the_terminal_as_it_obeys() -> None:
    cause = FailureCause("ValueError: \33[2J", "\33]0;train.py\7:1", "Traceback\n\33[31mV\r", beside="in \x9b: ")
    there = NodeFailure(1, "node\33[2J", "words\33[2J", 1, traceback="\33[2J")
    for result in (JobResult(2, ProcessExit(0, 9, 1, ("x\33[2J",), cause=cause)), JobResult(2, elsewhere=there)):
        words = explain(result) or ""
        assert "\\x1b[2J" in words
        assert all(letter.isprintable() or letter == "\n" for letter in words)
