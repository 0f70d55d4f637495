"""Return a block of lines on how a job ended, if it did not end well."""

import shlex
import signal

from accel_state.exit_codes import HUNG, STOPPED
from accel_state.failure_file import printable

from accel_launch.report.job_result import JobResult, ProcessExit

HINTS: dict[int, str] = {
    signal.SIGKILL: "often out of memory: the system, or a container's limit, kills a process that takes too much",
    signal.SIGSEGV: "it crashed in native code",
    signal.SIGABRT: "native code gave up; its message is above",
    signal.SIGBUS: "often a full /dev/shm: use fewer data loading workers, or give the container more shared memory",
    signal.SIGILL: "native code was built for another kind of processor",
    signal.SIGTERM: "something outside the job asked this process to end",
}
HANDLER = "run it with PYTHONFAULTHANDLER=1 to see the Python line"
LONGEST_COMMAND, LONGEST_LINE = 200, 500
#: lines of a message after its first one
LONGEST_MESSAGE = 6


def explain(result: JobResult) -> str | None:
    """Return the last words on a job, without control characters, or None if all went well."""
    lines = _last_words(result)
    return printable("\n".join(lines), "\n\t") if lines else None


def _last_words(result: JobResult) -> list[str]:
    first = result.first
    if first is not None and first.status == STOPPED:
        by = f", by {result.outside.name}" if result.outside is not None else ""
        return [
            f"accel: the job of {result.size} was asked to stop{by}, and has saved: run the same command again to go"
            f" on (exit code {STOPPED})"
        ]
    if result.outside is not None:
        return _after_signal(result, result.outside)
    if result.elsewhere is not None:
        failure = result.elsewhere
        lines = [failure.traceback, ""] if failure.traceback else []
        lines += [f"accel: on machine {failure.machine}, {failure.host}:", failure.words]
        lines += _ranks("failed here as well", result.failed)
        lines += _ranks("ended here because of it", result.stopped)
    elif first is not None:
        lines = _first_failure(result, first)
    else:
        return []
    return lines if result.logs is None else [*lines, f"  what each rank has printed: {result.logs}"]


def _first_failure(result: JobResult, first: ProcessExit) -> list[str]:
    """Return the last words on the root cause: its traceback, unless a single process has just shown it."""
    cause = first.cause
    own = result.size == 1 and result.shown and first.status > 0
    lines = [cause.shown, ""] if cause is not None and not own else []
    lines += described(first, result.size, shown=result.shown)
    lines += _ranks("had ended before, with exit code 0", result.done)
    lines += _ranks("failed as well", result.failed, first.rank)
    lines += _ranks("ended because of it", result.stopped, first.rank)
    if result.latest and first.status < 0 and (cause is None or not cause.site):
        lines.append(f"  its last exchange was {result.latest}")
    return lines + [f"  rank {rank} was in {exchange}" for rank, exchange in sorted(result.waiting.items())]


def described(ended: ProcessExit, size: int, *, shown: bool = True) -> list[str]:
    """Return the failure of a process, its cause, and a hint.

    Args:
        ended: The end of the process.
        size: Number of processes of the job.
        shown: True if its output is seen.
    """
    lines = [f"accel: rank {ended.rank} of {size} (pid {ended.pid}) {how_ended(ended.status)}"]
    cause = ended.cause
    if cause is not None:
        what, *more = cause.what.splitlines() or [""]
        lines.append(f"  {cause.beside}{what[:LONGEST_LINE]}")
        lines += [f"    {line.strip()[:LONGEST_LINE]}" for line in more[:LONGEST_MESSAGE]]
        lines += ["    ..."] if len(more) > LONGEST_MESSAGE else []
        lines += [f"  at {cause.site[:LONGEST_LINE]}"] if cause.site else []
        lines += [f"  it was in {cause.exchange}"] if cause.exchange else []
    command = shlex.join(ended.command)
    cut = f"{command[:LONGEST_COMMAND]} ..." if len(command) > LONGEST_COMMAND else command
    return [*lines, f"  {_hint(ended, shown)}", f"  command: {cut}"]


def how_ended(status: int) -> str:
    """Return the end of a process in words."""
    if status > 0:
        return f"failed with exit code {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:  # a real-time signal has no name
        name = f"signal {-status}"
    return f"was killed by {name}"


def _after_signal(result: JobResult, number: signal.Signals) -> list[str]:
    lines = [f"accel: the job of {result.size} was ended by {number.name} from outside"]
    if result.first is not None and result.first.status > 0:
        lines.append(f"  rank {result.first.rank} (pid {result.first.pid}) {how_ended(result.first.status)}")
    return lines + _ranks(f"had not ended {result.grace_s:g} s later, and had to be killed", result.killed)


def _ranks(words: str, ranks: tuple[int, ...], told: int = -1) -> list[str]:
    others = [str(rank) for rank in ranks if rank != told]
    return [f"  {words}: rank {', '.join(others)}"] if others else []


def _hint(ended: ProcessExit, shown: bool) -> str:
    cause = ended.cause
    peak = f"it took up to {ended.peak_bytes / 2**30:.2f} GiB" if ended.peak_bytes else ""
    if ended.status == HUNG:
        return "processes waited for each other in vain; the report above says who, and where"
    if ended.status > 0:
        where = "is above" if shown else "tells why"
        if cause is not None:
            return f"its own message {where}"
        # sys.exit(3) prints nothing, and sys.exit("no data") does: nobody else knows which
        return f"it left no traceback; if it printed a message, that {where}" + (f"; {peak}" if peak and shown else "")
    hint = HINTS.get(-ended.status, "nothing in accel sends this signal")
    if ended.status in (-signal.SIGSEGV, -signal.SIGABRT) and (cause is None or not cause.site):
        return f"{hint}; {HANDLER}"
    return f"{hint}; {peak}" if peak and ended.status == -signal.SIGKILL else hint
