"""Run the processes of a job on this machine, from the first start to the last end, and start them again."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from accel_state.environ import MEMORY_CHECKPOINTS, PROGRESS
from accel_state.errors import CannotRun
from accel_state.exit_codes import STOPPED

from accel_launch.job.job import Job
from accel_launch.job.plan import RendezvousInfo, watched
from accel_launch.memory.job_folder import make_folder
from accel_launch.report.job_result import JobResult
from accel_launch.supervise.orphan_killer import orphan_killer
from accel_launch.supervise.output import ERR, OUT, Output
from accel_launch.supervise.process_tree import adopt_orphans, end_job
from accel_launch.supervise.signals import SignalSource, has_terminal
from accel_launch.supervise.supervisor import UNREAD_S, Supervisor

#: what Python imports before a script: it has failures told, and answers `accelerate` by accel if that was asked for
STARTUP = Path(__file__).parents[1] / "report" / "startup"
#: seconds before the first start again, and at most; twice as many each time
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0


def run_job(job: Job, source: SignalSource, *, bound: bool = True, attempt: int = 0) -> JobResult:
    """Run a job of this machine under supervision, from the first start to the last end.

    Args:
        job: Job to run.
        source: Source of signals.
        bound: Let processes die with this process. After a failure no process that they have started is left.
        attempt: Number of earlier starts.

    Raises:
        CannotRun: A process cannot be started.
    """
    from accel_launch.job.ports import reserved_ports

    with ExitStack() as stack:
        meeting, started = stack.enter_context(reserved_ports()) if job.count > 1 else (None, None)
        supervisor = stack.enter_context(supervised(job, source, meeting, bound=bound, attempt=attempt))
        return with_notes(supervisor.run(started), job, supervisor, job.count)


def run_until_done(
    run: Callable[[int], JobResult],
    max_restarts: int,
    say: Callable[[str], None],
    pause: Callable[[float], JobResult | None] = time.sleep,
) -> JobResult:
    """Run a job to its end, and report each failure.

    After a failure all processes are started again, up to `max_restarts` times without a new checkpoint in between. A
    job is not started again if a signal from outside ended it, if it stopped on request, or if it lost a machine for
    good.

    Args:
        run: Runs the job once, given the number of earlier starts.
        max_restarts: Number of restarts.
        say: Prints a line.
        pause: Lets seconds pass, and returns the result of the job if it ends meanwhile.

    Returns:
        The result of the last start.

    Raises:
        CannotRun: A process cannot be started.
    """
    attempt = failures = 0
    while True:
        result = run(attempt)
        tell(result, say)
        failures = 1 if result.progressed else failures + 1
        if result.code in (0, STOPPED) or result.by_somebody:
            return result
        if result.lost_machine or failures > max_restarts:
            if max_restarts:
                spent = f"after {max_restarts} restarts without a new checkpoint"
                say(f"accel: gives up {'as a machine is lost' if result.lost_machine else spent}")
            return result
        # a start that left a checkpoint got further: the next does not fail in the same place
        pause_s = 0.0 if result.progressed else min(FIRST_PAUSE_S * 2 ** (failures - 1), LONGEST_PAUSE_S)
        when = f"in {pause_s:g} s" if pause_s else "at once"
        say(f"accel: starts again {when} ({failures} of {max_restarts} times)")
        ended = pause(pause_s)
        if ended is not None:
            tell(ended, say)
            return ended
        attempt += 1


def tell(result: JobResult, say: Callable[[str], None]) -> None:
    """Send the last words on a job to `say`, if it has not ended well."""
    from accel_launch.report.failure_report import explain

    last_words = explain(result)
    if last_words is None:
        return
    # a progress bar may have left its line unfinished, and whoever has ended the job may have stopped to read
    thread = threading.Thread(target=say, args=(f"\n{last_words}",), daemon=True)
    thread.start()
    thread.join(UNREAD_S if result.by_somebody else None)


@contextmanager
def supervised(
    job: Job, source: SignalSource, meeting: RendezvousInfo | None, *, bound: bool = True, attempt: int = 0
) -> Iterator[Supervisor]:
    """Yield the processes of a job on this machine, to be started.

    Args:
        job: Job to run.
        source: Source of signals.
        meeting: Rendezvous of the processes; None if there is one process.
        bound: Let processes die with this process.
        attempt: Number of earlier starts.

    Raises:
        CannotRun: The folder for their output cannot be made.
    """
    began, memory = time.time(), job.environ.get(MEMORY_CHECKPOINTS)
    if memory:
        with suppress(OSError):  # it is there, unless the system has removed it, as that of a user who logs out
            make_folder(Path(memory))  # its lock stays until this process ends
    with TemporaryDirectory(prefix="accel-", ignore_cleanup_errors=True) as name, ExitStack() as stack:
        folder = Path(name)
        if bound:
            adopt_orphans()
            stack.enter_context(orphan_killer(folder, memory))
        logs = _log_folder(job, attempt)
        shown = [number for number in (OUT, ERR) if int(job.settings.tee) & number]
        output = stack.enter_context(Output(logs, shown)) if logs is not None else None
        supervisor = Supervisor(
            job.processes(with_startup(watched(job.environ, name, attempt)), meeting),
            source,
            folder=folder,
            grace_s=job.settings.grace_period,
            output=output,
            bound=bound,
            own_groups=bound and not has_terminal(),
        )
        well = False
        try:
            yield supervisor
            well = supervisor.well
        finally:
            stack.close()
            if bound and not well:
                end_job(folder, since=began)


def with_startup(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which Python imports accel's startup file before a script."""
    path = os.pathsep.join([str(STARTUP), *filter(None, [environ.get("PYTHONPATH")])])
    return {**environ, "PYTHONPATH": path}


def _log_folder(job: Job, attempt: int) -> Path | None:
    """Make a new folder for the output of processes. Raise CannotRun if that is refused."""
    if job.logs is None:
        return None
    folder = job.logs / f"attempt-{attempt}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotRun("accel launch", [f"log_dir {job.logs.parent}: {error}"]) from error
    return folder


def progressed(supervisor: Supervisor) -> bool:
    """Return True if the job of these processes has left a checkpoint."""
    return (supervisor.folder / PROGRESS).exists()


def with_notes(result: JobResult, job: Job, supervisor: Supervisor, world: int) -> JobResult:
    """Return a result with the exchanges of processes, or with the rank that another launcher gave a single process.

    Args:
        result: How the processes of this machine ended.
        job: The job.
        supervisor: Its processes.
        world: Number of processes on all machines.
    """
    result = replace(result, size=world, progressed=progressed(supervisor))
    if world == 1:
        told = job.place
        if told is None or result.first is None:
            return result
        rank, size = told.values()
        if not (rank.isdecimal() and size.isdecimal()):
            return result
        return replace(result, size=int(size), first=replace(result.first, rank=int(rank)), failed=())
    if result.well:
        return result
    from accel_comm.flight_recorder import read

    newest = {
        spec.rank: records[-1] for spec in supervisor.specs if (records := read(supervisor.folder / str(spec.rank)))
    }
    waiting = {rank: f"{entry} (exchange {entry.number})" for rank, entry in newest.items() if entry.ended is None}
    last, latest = newest.get(result.first.rank) if result.first is not None else None, ""
    if last is not None and last.ended is not None:
        latest = f"{last} (exchange {last.number}, {time.monotonic() - last.ended:.0f} s ago)"
    return replace(result, waiting=waiting, latest=latest)
