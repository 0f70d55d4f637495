"""Runs what one machine has to start in a job of several, and finds out which of their failures was the first."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from math import inf

from accel_state.exits import STOPPED

from accel_launch.blame import place_of
from accel_launch.elsewhere import Dismissed, Fleet, Share
from accel_launch.first import First
from accel_launch.job import Job
from accel_launch.joined import Joined
from accel_launch.lifeline import adopt_orphans, end_orphans
from accel_launch.link import interface_towards
from accel_launch.machines import Place
from accel_launch.meeting import Meeting
from accel_launch.outcome import Outcome
from accel_launch.plan import LOOPBACK, Ports
from accel_launch.running import run_share
from accel_launch.supervise import GRACE_S
from accel_launch.verdict import explain

#: seconds for the words of other machines to come, after a failure; and for these to end their processes
WORDS_S, ENDING_S = 0.5, 10.0


def lead(job: Job, place: Place, fleet: First, *, attempt: int, say: Callable[[str], None]) -> Outcome:
    """Runs a job from its first machine, once.

    Raises: CannotRun if a process cannot be started; Dismissed, after words on what has failed before.
    """
    with Meeting(fleet.address) as meeting:
        share = fleet.deal(attempt, meeting.ports.store_port, meeting.ports.master_port)
        ports = replace(_ports(place, share), store_fd=meeting.ports.store_fd)
        outcome = run_share(job, ports, inbox=fleet.waiting, attempt=attempt, fleet=fleet, on_start=meeting.handed_over)
    outcome = _judged(outcome, fleet)
    wait_s = max(job.settings.grace_period or 0, *GRACE_S.values()) + ENDING_S
    try:
        progressed = fleet.settle(outcome.progressed, outcome.code != 0, wait_s)
    except Dismissed:
        _say(_late(outcome, fleet), say)
        raise
    outcome = _late(outcome, fleet)
    return replace(outcome, progressed=progressed, asked=outcome.asked or fleet.asked)


def follow(job: Job, place: Place, fleet: Joined, *, say: Callable[[str], None]) -> Outcome:
    """Runs the share of another machine, as often as the first one says, or until somebody has ended it here.

    Raises: CannotRun if this machine is refused, or a process cannot be started; Dismissed.
    """
    outcome, wait_s = Outcome(job.count), float(job.settings.join_timeout)
    others, failed = adopt_orphans(), True
    try:
        while not fleet.lost and (share := fleet.wait(wait_s)) is not None:
            end_orphans(others)  # of an attempt before
            outcome = run_share(job, _ports(place, share), inbox=fleet.waiting, attempt=share.attempt, fleet=fleet)
            outcome = _judged(outcome, fleet)
            _say(outcome, say)
            fleet.ended(outcome.progressed, outcome.asked)
            if outcome.asked and outcome.code not in (0, STOPPED):
                break
            wait_s = inf
        fleet.heard_late()
        if outcome.code == 0:
            outcome = _late(outcome, fleet)
            _say(outcome, say)
        failed = outcome.code != 0
    finally:
        if failed:
            end_orphans(others)
    return outcome


def _say(outcome: Outcome, say: Callable[[str], None]) -> None:
    words = explain(outcome)
    if words is not None:
        say(words)


def _late(outcome: Outcome, fleet: Fleet) -> Outcome:
    """The outcome of a share that has ended well, with what has failed elsewhere later."""
    if outcome.code or not fleet.failures:
        return outcome
    return replace(outcome, elsewhere=min(fleet.failures, key=lambda one: one.place))


def _ports(place: Place, share: Share) -> Ports:
    return Ports(
        store_port=share.store_port,
        store_fd=None,
        master_port=share.master_port,
        address=share.address,
        interface="" if share.address == LOOPBACK else interface_towards(place.host, place.port),
        machine=share.machine,
        first=share.first,
        world=share.world,
    )


def _judged(outcome: Outcome, fleet: Fleet) -> Outcome:
    """The outcome with the failure that the others come from, on whichever machine it was."""
    first = outcome.first
    if first is not None and first.status == STOPPED:
        by_somebody = outcome.elsewhere is not None and outcome.elsewhere.outside
        return replace(outcome, elsewhere=None) if by_somebody else outcome  # what has ended it there, has it save here
    if first is None and outcome.elsewhere is None:
        return outcome
    until = time.monotonic() + WORDS_S
    while time.monotonic() < until:
        fleet.heard()
        time.sleep(WORDS_S / 10)
    there = min(fleet.failures, key=lambda one: one.place, default=outcome.elsewhere)
    if there is None:
        return outcome
    here = place_of(first, outcome.said) if first is not None else None
    if here is None or there.place < here or (there.place == here and outcome.elsewhere is not None):
        return replace(outcome, first=None, elsewhere=there)
    return replace(outcome, elsewhere=None)
