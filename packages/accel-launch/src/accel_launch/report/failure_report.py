"""Says in one block how a job ended, if it did not end well."""

import shlex
import signal

from accel_state.exit_codes import HUNG, STOPPED

from accel_launch.report.failure_cause import FailureCause
from accel_launch.report.job_result import JobResult, ProcessExit

HINTS = {
    signal.SIGKILL: "often out of memory: the system, or a container's limit, kills a process that takes too much",
    signal.SIGSEGV: "it crashed in native code",
    signal.SIGABRT: "native code gave up; its message is above",
    signal.SIGBUS: "often a full /dev/shm: use fewer data loading workers, or give the container more shared memory",
    signal.SIGILL: "native code was built for another kind of processor",
    signal.SIGTERM: "something outside the job asked this process to end",
}
HANDLER = "run it with PYTHONFAULTHANDLER=1 to see the Python line"
LONGEST_COMMAND = 200
LONGEST_LINE = 500
#: lines of a message after its first one
LONGEST_MESSAGE = 6


def explain(result: JobResult) -> str | None:
    """The last words on a job: None if all went well, one block otherwise."""
    if result.first is not None and result.first.status == STOPPED:
        by = f", by {result.outside.name}" if result.outside is not None else ""
        return (
            f"accel: the job of {result.size} was asked to stop{by}, and has saved: run the same command again to go"
            f" on (exit code {STOPPED})"
        )
    if result.outside is not None:
        return _after_signal(result, result.outside)
    if result.first is None:
        return _of_another_machine(result)
    first = result.first
    cause = cause_of(first)
    lines = [] if cause is None or (result.last and result.shown and first.status > 0) else [cause.shown, ""]
    lines += described(first, result.size, shown=result.shown)
    if result.done:
        lines.append(f"  had ended before, with exit code 0: rank {_ranks(result.done)}")
    if result.stopped:
        lines.append(f"  ended because of it: rank {_ranks(result.stopped)}")
    if result.latest and first.status < 0 and (cause is None or not cause.site):
        lines.append(f"  its last exchange was {result.latest}")
    lines += [f"  rank {rank} was in {call}" for rank, call in sorted(result.waiting.items())]
    return "\n".join(lines + _logs(result))


def cause_of(ended: ProcessExit) -> FailureCause | None:
    """What a process says of its end; nothing if somebody else killed it."""
    return ended.cause if ended.status not in (-signal.SIGKILL, -signal.SIGTERM) else None


def described(ended: ProcessExit, size: int, *, shown: bool = True) -> list[str]:
    """A process that has failed, why, and what may help; `shown` is whether what it prints is seen."""
    lines = [f"accel: rank {ended.rank} of {size} (pid {ended.pid}) {how_ended(ended.status)}"]
    cause = cause_of(ended)
    if cause is not None:
        what, *more = cause.what.splitlines() or [""]
        lines.append(f"  {cause.beside}{what[:LONGEST_LINE]}")
        lines += [f"    {line.strip()[:LONGEST_LINE]}" for line in more[:LONGEST_MESSAGE]]
        lines += ["    ..."] if len(more) > LONGEST_MESSAGE else []
        lines += [f"  at {cause.site[:LONGEST_LINE]}"] if cause.site else []
    return [*lines, f"  {_hint(ended, cause, shown)}", f"  command: {_command(ended)}"]


def _of_another_machine(result: JobResult) -> str | None:
    """The last words of a machine on which nothing has failed."""
    failed = result.elsewhere
    if failed is None:
        return None
    shown = [failed.traceback, ""] if failed.traceback else []
    ended = [f"  ended here because of it: rank {_ranks(result.stopped)}"] if result.stopped else []
    where = f"accel: on machine {failed.machine}, {failed.host}:"
    return "\n".join([*shown, where, failed.words, *ended, *_logs(result)])


def _logs(result: JobResult) -> list[str]:
    return [f"  what each rank has printed: {result.logs}"] if result.logs is not None else []


def _after_signal(result: JobResult, number: signal.Signals) -> str:
    lines = [f"accel: the job of {result.size} was ended by {number.name} from outside"]
    if result.first is not None and result.first.status > 0:
        lines.append(f"  rank {result.first.rank} (pid {result.first.pid}) {how_ended(result.first.status)}")
    if result.killed:
        lines.append(f"  killed, since still running {result.grace_s:g} s later: rank {_ranks(result.killed)}")
    return "\n".join(lines)


def _ranks(ranks: tuple[int, ...]) -> str:
    return ", ".join(str(rank) for rank in ranks)


def how_ended(status: int) -> str:
    """The end of a process in words."""
    if status > 0:
        return f"failed with exit code {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:  # a real-time signal has no name
        name = f"signal {-status}"
    return f"was killed by {name}"


def _hint(ended: ProcessExit, cause: FailureCause | None, shown: bool) -> str:
    peak = f"it took up to {ended.peak_bytes / 2**30:.2f} GiB" if ended.peak_bytes else ""
    if ended.status == HUNG:
        return "processes waited for each other in vain; the report above says who, and where"
    if ended.status > 0 and not shown:
        return "its own message tells why"
    if ended.status > 0:
        return "its own message is above" + (f"; {peak}" if peak and cause is None else "")
    known = {int(number): hint for number, hint in HINTS.items()}
    hint = known.get(-ended.status, "nothing in accel sends this signal")
    if ended.status in (-signal.SIGSEGV, -signal.SIGABRT) and (cause is None or not cause.site):
        return f"{hint}; {HANDLER}"
    return f"{hint}; {peak}" if peak and ended.status == -signal.SIGKILL else hint


def _command(ended: ProcessExit) -> str:
    words = shlex.join(ended.command)
    return words if len(words) <= LONGEST_COMMAND else words[:LONGEST_COMMAND] + " ..."
