"""Run the processes of a job on this machine, from the first start to the last end."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from accel_state.environ import PROGRESS
from accel_state.errors import CannotRun

from accel_launch.job.job import Job
from accel_launch.job.plan import RendezvousInfo, place_told, watched
from accel_launch.report.job_result import JobResult
from accel_launch.supervise.orphan_killer import orphan_killer
from accel_launch.supervise.output import ERR, OUT, Output
from accel_launch.supervise.process_tree import adopt_orphans, end_job
from accel_launch.supervise.signals import SignalSource, has_terminal
from accel_launch.supervise.supervisor import Supervisor

#: what Python imports before a script: it has failures told, and answers `accelerate` by accel if that was asked for
STARTUP = Path(__file__).parents[1] / "report" / "startup"


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
    from accel_launch.job.ports import PortReservation

    with ExitStack() as stack:
        ports = stack.enter_context(PortReservation()) if job.count > 1 else None
        meeting = ports.meeting if ports is not None else None
        with supervised(job, source, meeting, bound=bound, attempt=attempt) as run:
            result = run.supervisor.run(ports.handed_over if ports is not None else None)
            return run.with_notes(result)


class JobRun:
    """A start of a job on this machine.

    Args:
        job: The job.
        supervisor: Its processes.
        folder: Folder in which they leave notes.
        meeting: Their rendezvous; None if there is one process.
    """

    def __init__(self, job: Job, supervisor: Supervisor, folder: Path, meeting: RendezvousInfo | None) -> None:
        self.supervisor, self._job, self._folder, self._meeting = supervisor, job, folder, meeting

    @property
    def world(self) -> int:
        """The number of processes of the job on all machines."""
        return (self._meeting.world if self._meeting is not None else None) or self._job.count

    @property
    def progressed(self) -> bool:
        """True if the job has left a checkpoint."""
        return (self._folder / PROGRESS).exists()

    def with_notes(self, result: JobResult) -> JobResult:
        """Add the exchanges that processes have recorded to a result, and ranks as another launcher counts them."""
        result = replace(result, size=self.world, progressed=self.progressed)
        if self._meeting is not None:
            ranks = [spec.rank for spec in self.supervisor.specs]
            return result if result.well else _with_exchanges(result, self._folder, ranks)
        told = place_told(self._job.environ)
        if told is not None and result.first is not None:
            rank, size = (self._job.environ[name] for name in told)
            if rank.isdecimal() and size.isdecimal():
                return replace(result, size=int(size), first=replace(result.first, rank=int(rank)), failed=())
        return result


@contextmanager
def supervised(
    job: Job, source: SignalSource, meeting: RendezvousInfo | None, *, bound: bool = True, attempt: int = 0
) -> Iterator[JobRun]:
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
    began = time.time()
    with TemporaryDirectory(prefix="accel-", ignore_cleanup_errors=True) as name, ExitStack() as stack:
        folder = Path(name)
        if bound:
            adopt_orphans()
            stack.enter_context(orphan_killer(folder))
        logs = _log_folder(job, attempt)
        shown = frozenset(number for number in (OUT, ERR) if int(job.settings.tee) & number)
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
            yield JobRun(job, supervisor, folder, meeting)
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


def _with_exchanges(result: JobResult, folder: Path, ranks: Sequence[int]) -> JobResult:
    """Add the exchange in which each process ended, and the last exchange of the process that failed."""
    from accel_comm.flight_recorder import read

    newest = {rank: records[-1] for rank in ranks if (records := read(folder / str(rank)))}
    waiting = {rank: f"{entry} (exchange {entry.number})" for rank, entry in newest.items() if entry.ended is None}
    last = newest.get(result.first.rank) if result.first is not None else None
    if last is None or last.ended is None:
        return replace(result, waiting=waiting)
    return replace(
        result, waiting=waiting, latest=f"{last} (exchange {last.number}, {time.monotonic() - last.ended:.0f} s ago)"
    )
