"""Find the root cause of a failed job, the processes that failed as well, and those that were ended because of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from signal import Signals

from accel_launch.report.job_result import LOST_PEER, JobResult, ProcessExit


def root_cause(failures: Sequence[ProcessExit]) -> ProcessExit | None:
    """Return the failure that caused the others: the first in time that has not lost a peer."""
    return min(failures, key=lambda failure: failure.order == LOST_PEER, default=None)


def blame(
    size: int,
    exits: Sequence[ProcessExit],
    failures: Sequence[ProcessExit],
    *,
    terminated: Sequence[int] = (),
    told: Collection[int] = (),
    outside: Signals | None = None,
) -> JobResult:
    """Return the result of a job whose processes have ended, with the part that each process had in its end.

    Args:
        size: Number of processes of the job.
        exits: All ends, in the order in which they came.
        failures: The ends by failure among them, in the same order.
        terminated: Ranks that ran when the launcher ended the job.
        told: Ranks that left an exception of their own.
        outside: Signal by which somebody ended the job; then the first failure by time counts.
    """
    first = next(iter(failures), None) if outside is not None else root_cause(failures)
    alone: set[int] = set()
    if failures:
        own = {ended.rank for ended in exits if ended.status and ended.rank in told}
        before = {failure.rank for failure in failures if failure.order != LOST_PEER}
        alone = (before | own) - (set(terminated) - set(told))
    earlier = exits[: exits.index(failures[0])] if failures else ()
    return JobResult(
        size,
        first,
        stopped=tuple(rank for rank in terminated if rank not in alone),
        failed=tuple(sorted(alone)),
        done=tuple(sorted(ended.rank for ended in earlier if not ended.status)),
        outside=outside,
    )
