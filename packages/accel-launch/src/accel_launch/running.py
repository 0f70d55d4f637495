"""Runs what of a job this machine has to start, from its first process to the end of its last."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from signal import Signals
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from accel_state.environ import JOURNAL, PROGRESS
from accel_state.errors import CannotRun

from accel_launch.affinity import cores_of_processes
from accel_launch.guard import guarded
from accel_launch.job import Job
from accel_launch.outcome import Ended, Outcome
from accel_launch.plan import Ports, place_told, plan_many, plan_one, watched
from accel_launch.signals import Inbox, has_terminal
from accel_launch.streams import Streams, shown_of
from accel_launch.supervise import supervise

if TYPE_CHECKING:
    from accel_launch.elsewhere import Fleet

#: seconds for the last words of a process to arrive, after it has ended
WORDS_S = 0.1


def run_job(job: Job, *, inbox: Inbox, tied: bool = True, attempt: int = 0) -> Outcome:
    """Runs a job of this machine under supervision, from its first process to the end of its last.

    `tied` ones die with this process, and what they print goes through it.

    Raises: CannotRun if a process cannot be started.
    """
    from accel_launch.meeting import Meeting

    if job.count == 1:
        return run_share(job, None, inbox=inbox, tied=tied, attempt=attempt)
    with Meeting() as meeting:
        on_start = meeting.handed_over
        return run_share(job, meeting.ports, inbox=inbox, tied=tied, attempt=attempt, on_start=on_start)


def run_share(
    job: Job,
    ports: Ports | None,
    *,
    inbox: Inbox,
    tied: bool = True,
    attempt: int = 0,
    fleet: Fleet | None = None,
    on_start: Callable[[int], None] | None = None,
) -> Outcome:
    """Runs what of a job this machine has, where its processes meet at these ports; one alone meets nobody.

    Raises: CannotRun if a process cannot be started.
    """
    from accel_launch.lifeline import die_with_parent

    parent = os.getpid()

    def before_exec() -> None:
        inbox.in_child()
        die_with_parent(parent)

    with TemporaryDirectory(prefix="accel-", ignore_cleanup_errors=True) as name, ExitStack() as stack:
        folder, environ = Path(name), watched(job.environ, name, attempt)
        if tied:
            stack.enter_context(guarded(folder))
        if ports is None:
            specs = [plan_one(job.settings, job.command, {**environ, JOURNAL: name})]
        else:
            specs = plan_many(
                job.settings,
                job.command,
                environ,
                count=job.count,
                machine=job.machine,
                ports=ports,
                journals=folder,
            )
        if job.settings.enable_cpu_affinity:
            specs = [replace(spec, cores=tuple(some)) for spec, some in zip(specs, _cores(job), strict=True)]
        streams = stack.enter_context(Streams(_logs(job, attempt), shown_of(job.settings.tee))) if tied else None
        outcome = supervise(
            specs,
            inbox=inbox,
            before_exec=before_exec if tied else None,
            on_start=on_start,
            grace_s=job.settings.grace_period,
            streams=streams,
            apart=tied and not has_terminal(),
            others=fleet,
            on_failure=partial(_tell, fleet, streams, ports) if fleet is not None else None,
        )
        progressed = (folder / PROGRESS).exists()
        world = (ports.world if ports is not None else None) or job.count
        outcome = replace(outcome, size=world, progressed=progressed)
        if ports is None:
            outcome = _as_others_count(outcome, job.environ)
        ranks = [spec.rank for spec in specs]
        return outcome if outcome.well or ports is None else _with_exchanges(outcome, folder, ranks)


def _as_others_count(outcome: Outcome, environ: Mapping[str, str]) -> Outcome:
    """The outcome of one process, with the rank and the number of all that another launcher has told it."""
    told = place_told(environ)
    if told is None or outcome.first is None:
        return outcome
    return replace(outcome, size=told[1], first=replace(outcome.first, rank=told[0]))


def _cores(job: Job) -> list[list[int]]:
    """The cores of each process: those next to its GPU, or its share of all."""
    chosen = job.settings.gpu_ids
    if chosen in (None, "all"):
        chosen = job.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(job.count)))
    names = str(chosen).split(",")
    known = job.machine.accelerators and not job.settings.cpu and all(one.strip().isdecimal() for one in names)
    return cores_of_processes(job.count, [int(one) for one in names] if known else [])


def _logs(job: Job, attempt: int) -> Path | None:
    """A new folder for what processes print.

    Raises: CannotRun if it cannot be made.
    """
    if job.logs is None:
        return None
    folder = job.logs / f"attempt-{attempt}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotRun("accel launch", [f"log_dir {job.logs.parent}: {error}"]) from error
    return folder


def _tell(fleet: Fleet, streams: Streams | None, ports: Ports | None, ended: Ended, outside: Signals | None) -> None:
    """Tells other machines of a process that has failed, with its last words."""
    from accel_launch.blame import place_of
    from accel_launch.elsewhere import Elsewhere
    from accel_launch.verdict import cause_of, described

    time.sleep(WORDS_S)
    said = streams.tails().get(ended.rank, "") if streams is not None else ""
    cause = cause_of(ended, said)
    words = "\n".join(described(ended, (ports.world if ports is not None else None) or 1, cause, said))
    code = ended.status if ended.status > 0 else 128 - ended.status
    shown = cause.shown if cause is not None else ""
    if outside is not None:
        words = f"  the job was ended there by {outside.name} from outside"
    place, by_somebody = place_of(ended, said), outside is not None
    fleet.tell(Elsewhere(fleet.machine, fleet.host, words, code, shown, place, fleet.attempt, by_somebody))


def _with_exchanges(outcome: Outcome, journals: Path, ranks: Sequence[int]) -> Outcome:
    """The outcome, with the exchange that each process was in when it ended, and the last one of that which failed."""
    from accel_state.journal import read

    newest = {rank: entries[-1] for rank in ranks if (entries := read(journals / str(rank)))}
    waiting = {rank: f"{entry} (exchange {entry.number})" for rank, entry in newest.items() if entry.ended is None}
    last = newest.get(outcome.first.rank) if outcome.first is not None else None
    if last is None or last.ended is None:
        return replace(outcome, waiting=waiting)
    ago = f"{time.monotonic() - last.ended:.0f} s ago"
    return replace(outcome, waiting=waiting, latest=f"{last} (exchange {last.number}, {ago})")
