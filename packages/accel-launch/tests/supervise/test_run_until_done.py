"""How often a job is started again, after which pauses, and with which words; no process runs here."""

import signal
from collections.abc import Sequence

import pytest
from accel_launch.job.job_runner import run_until_done
from accel_launch.nodes.peers import NodeFailure
from accel_launch.report.job_result import JobResult, ProcessExit
from accel_state.exit_codes import STOPPED


def failed(status: int = 3, *, progressed: bool = False) -> JobResult:
    return JobResult(2, ProcessExit(0, 9, status, ("x",)), progressed=progressed)


class Starts:
    """A job whose starts end as given, the last of them each time from then on; nobody waits in its pauses."""

    def __init__(self, *ends: JobResult) -> None:
        self._ends: Sequence[JobResult] = ends
        self.attempts: list[int] = []
        self.pauses_s: list[float] = []
        self.said: list[str] = []

    def run(self, attempt: int) -> JobResult:
        self.attempts.append(attempt)
        return self._ends[min(attempt, len(self._ends) - 1)]

    def until_done(self, max_restarts: int) -> JobResult:
        return run_until_done(self.run, max_restarts, self.said.append, self.pauses_s.append)

    @property
    def announced(self) -> list[str]:
        """What was said of new starts, without the pause."""
        return [words.partition("(")[2].rstrip(")") for words in self.said if "starts again " in words]


@pytest.mark.parametrize("max_restarts", [0, 1, 2, 5])
def test_a_job_that_always_fails_starts_once_more_than_restarts(max_restarts: int) -> None:
    starts = Starts(failed())
    assert starts.until_done(max_restarts).code == 3
    assert starts.attempts == list(range(max_restarts + 1))
    assert starts.announced == [f"{number + 1} of {max_restarts} times" for number in range(max_restarts)]
    given_up = f"accel: gives up after {max_restarts} restarts without a new checkpoint"
    assert (starts.said[-1] == given_up) == (max_restarts > 0)


def test_the_last_start_that_is_allowed_may_end_well() -> None:
    starts = Starts(failed(), failed(), JobResult(2))
    assert starts.until_done(2).code == 0
    assert starts.attempts == [0, 1, 2]


def test_each_pause_is_twice_the_one_before_up_to_a_minute() -> None:
    starts = Starts(failed())
    starts.until_done(8)
    assert starts.pauses_s == [1, 2, 4, 8, 16, 32, 60, 60]


def test_a_checkpoint_begins_the_count_anew_and_needs_no_pause() -> None:
    starts = Starts(failed(), failed(progressed=True), failed())
    starts.until_done(2)
    assert starts.attempts == [0, 1, 2, 3]
    assert starts.pauses_s == [1, 0, 2]
    assert starts.announced == ["1 of 2 times", "1 of 2 times", "2 of 2 times"]


ENDED_THERE = NodeFailure(1, "node2", "", 143, outside=True)


@pytest.mark.parametrize(
    "end",
    [
        JobResult(2),
        failed(STOPPED),
        JobResult(2, ProcessExit(0, 9, -signal.SIGTERM, ("x",)), outside=signal.SIGTERM),
        JobResult(2, ProcessExit(0, 9, 3, ("x",)), asked=True),
        JobResult(2, elsewhere=ENDED_THERE),
        JobResult(2, elsewhere=NodeFailure(1, "node2", "", 1, lost=True), lost_machine=True),
    ],
    ids=["well", "stopped on request", "by a signal", "by a signal after a failure", "elsewhere", "a lost machine"],
)
def test_a_job_that_was_to_end_is_not_started_again(end: JobResult) -> None:
    starts = Starts(end)
    assert starts.until_done(3) is end
    assert (starts.attempts, starts.pauses_s) == ([0], [])


def test_a_job_that_ends_in_a_pause_is_not_started_again() -> None:
    starts, there = Starts(failed()), JobResult(2, elsewhere=ENDED_THERE)
    assert run_until_done(starts.run, 3, starts.said.append, lambda seconds: there) is there
    assert starts.attempts == [0]
