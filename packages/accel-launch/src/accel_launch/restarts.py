"""Starts a job again after it has failed, as often as it was allowed since it got further."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from accel_state.exits import STOPPED

from accel_launch.job import Job
from accel_launch.lifeline import adopt_orphans, end_orphans
from accel_launch.outcome import Outcome
from accel_launch.running import run_job
from accel_launch.signals import Inbox
from accel_launch.streams import UNREAD_S

if TYPE_CHECKING:
    from accel_launch.elsewhere import Fleet
    from accel_launch.machines import Place
    from accel_launch.waiting import Waiting

#: seconds before the first start again, and at most; twice as many each time
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0


def run_until_done(job: Job, *, inbox: Callable[[], Inbox], say: Callable[[str], None]) -> Outcome:
    """Runs a job to its end, and says how each failure came; nothing that it started is left when it has failed.

    After a failure all processes are started again, up to `max_restarts` times without a new checkpoint in between. A
    job that somebody has ended, that has stopped on request, or that has lost a machine, is not.

    Raises: CannotRun if the machines do not meet, or a process cannot be started.
    """
    place = job.place
    if place is None:
        return _repeated(job, lambda attempt: run_job(job, inbox=inbox(), attempt=attempt), say)
    from accel_launch.elsewhere import Dismissed
    from accel_launch.waiting import Waiting

    with Waiting(inbox()) as waiting:
        try:
            return _run_with_others(job, place, waiting, say)
        except Dismissed as dismissed:
            outcome, words = Outcome(job.count, elsewhere=dismissed.failed), dismissed.words
            _tell(outcome, lambda explained: say(words or explained))
            return outcome


def _run_with_others(job: Job, place: Place, waiting: Waiting, say: Callable[[str], None]) -> Outcome:
    from accel_launch.first import First
    from accel_launch.joined import Joined
    from accel_launch.several import follow, lead

    settings, patient = job.settings, "KUBERNETES_SERVICE_HOST" in job.environ
    asked = settings.num_processes
    # what a script reads of it has to be the same for all its processes
    alike = {name: getattr(settings, name) for name in ("mixed_precision", "gradient_accumulation_steps")}
    if place.rank != 0:
        with Joined(place, job.count, asked=asked, patient=patient, waiting=waiting, alike=alike) as joined:
            joined.join(job.settings.join_timeout)
            return follow(job, place, joined, say=_with_signs_of_life(joined, say))
    with First(place, job.count, asked=asked, patient=patient, waiting=waiting, alike=alike) as first:
        first.gather(job.settings.join_timeout)
        said = _with_signs_of_life(first, say)
        return _repeated(
            job,
            lambda attempt: lead(job, place, first, attempt=attempt, say=said),
            said,
            idle=first.idle,
            may=lambda: not first.lost,
        )


def _with_signs_of_life(fleet: Fleet, say: Callable[[str], None]) -> Callable[[str], None]:
    from accel_launch.waiting import LOOK_S, Called

    def said(words: str) -> None:
        try:
            with fleet.beating():
                thread = threading.Thread(target=say, args=(words,), daemon=True)
                thread.start()
                while thread.is_alive():
                    thread.join(LOOK_S)
                    if thread.is_alive() and threading.current_thread() is threading.main_thread():
                        fleet.waiting.pause(0)
        except Called as called:
            raise fleet.dismissed(called, "somebody to read what it prints") from None

    return said


def _repeated(
    job: Job,
    run: Callable[[int], Outcome],
    say: Callable[[str], None],
    *,
    idle: Callable[[float], None] = time.sleep,
    may: Callable[[], bool] = lambda: True,
) -> Outcome:
    others = adopt_orphans()
    attempt = failures = 0
    while True:
        failed = True
        try:
            outcome = run(attempt)
            failed = outcome.code != 0
        finally:
            if failed:
                end_orphans(others)
        if not outcome.well:
            _tell(outcome, say)
        failures = 1 if outcome.progressed else failures + 1
        if not failed or outcome.by_somebody or outcome.code == STOPPED:
            return outcome
        if failures > job.settings.max_restarts or not may():
            if job.settings.max_restarts:
                restarts = f"{job.settings.max_restarts} restarts without a new checkpoint"
                say(f"accel: gives up {f'after {restarts}' if may() else 'as a machine is lost'}")
            return outcome
        pause_s = min(FIRST_PAUSE_S * 2 ** (failures - 1), LONGEST_PAUSE_S)
        since = " since the last checkpoint" if outcome.progressed or attempt + 1 > failures else ""
        say(f"accel: starts again in {pause_s:g} s ({failures} of {job.settings.max_restarts} times{since})")
        idle(pause_s)
        attempt += 1


def _tell(outcome: Outcome, say: Callable[[str], None]) -> None:
    from accel_launch.verdict import explain

    last_words = explain(outcome)
    if last_words is None:
        return
    if not outcome.by_somebody:
        say(last_words)
        return
    # whoever has ended the job may have stopped to read, too
    thread = threading.Thread(target=say, args=(last_words,), daemon=True)
    thread.start()
    thread.join(UNREAD_S)
