"""Says in one block how a job ended, if it did not end well."""

import shlex
import signal

from accel_state.exits import STALLED, STOPPED

from accel_launch.causes import Cause, last_cause, last_fault
from accel_launch.outcome import Ended, Outcome
from accel_launch.plan import FAULTS

HINTS = {
    signal.SIGKILL: "often out of memory: the system, or a container's limit, kills a process that takes too much",
    signal.SIGSEGV: "it crashed in native code",
    signal.SIGABRT: "native code gave up; its message is above",
    signal.SIGBUS: "often a full /dev/shm: use fewer data loading workers, or give the container more shared memory",
    signal.SIGILL: "native code was built for another kind of processor",
    signal.SIGTERM: "something outside the job asked this process to end",
}
HANDLER = f"run it with {FAULTS}=1 to see the Python line"
LONGEST_COMMAND = 200
LONGEST_LINE = 500
#: lines of a message after its first one
LONGEST_MESSAGE = 6


def explain(outcome: Outcome) -> str | None:
    """The last words on a job: None if all went well, one block otherwise."""
    if outcome.first is not None and outcome.first.status == STOPPED:
        by = f", by {outcome.outside.name}" if outcome.outside is not None else ""
        return (
            f"accel: the job of {outcome.size} was asked to stop{by}, and has saved: run the same command again to go"
            f" on (exit code {STOPPED})"
        )
    if outcome.outside is not None:
        return _after_signal(outcome, outcome.outside)
    if outcome.first is None:
        return _of_another_machine(outcome)
    first = outcome.first
    cause = cause_of(first, outcome.said)
    lines = [] if cause is None or outcome.last else [cause.shown, ""]
    lines += described(first, outcome.size, cause, outcome.said if outcome.shown else None)
    if outcome.done:
        lines.append(f"  had ended before, with exit code 0: rank {_ranks(outcome.done)}")
    if outcome.stopped:
        lines.append(f"  ended because of it: rank {_ranks(outcome.stopped)}")
    if outcome.latest and first.status < 0 and (cause is None or cause.where is None):
        lines.append(f"  its last exchange was {outcome.latest}")
    lines += [f"  rank {rank} was in {call}" for rank, call in sorted(outcome.waiting.items())]
    return "\n".join(lines + _logs(outcome))


def cause_of(ended: Ended, said: str | None) -> Cause | None:
    """What a process has said of its end; a killed one that printed an exception before did not end by that."""
    said = said or ""
    if ended.status > 0:
        return last_cause(said)
    cause = last_cause(said) if ended.status == -signal.SIGINT else last_fault(said)
    return cause if ended.status not in (-signal.SIGKILL, -signal.SIGTERM) else None


def described(ended: Ended, size: int, cause: Cause | None, said: str | None) -> list[str]:
    """A process that has failed, why, and what may help."""
    lines = [f"accel: rank {ended.rank} of {size} (pid {ended.pid}) {how_ended(ended.status)}"]
    if cause is not None:
        # an exception that nobody catches ends a process with 1: with another code it may have been caught
        seen = "" if ended.status <= 1 else "the last exception it printed: "
        what, *more = cause.what.splitlines() or [""]
        lines.append(f"  {seen}{what[:LONGEST_LINE]}")
        lines += [f"    {line.strip()[:LONGEST_LINE]}" for line in more[:LONGEST_MESSAGE]]
        lines += ["    ..."] if len(more) > LONGEST_MESSAGE else []
        lines += [f"  at {cause.where[:LONGEST_LINE]}"] if cause.where is not None else []
    elif said is not None and ended.status > 0:
        lines += [f"  {last[:LONGEST_LINE]}" for last in said.replace("\r", "\n").split("\n") if last.strip()][-1:]
    return [*lines, f"  {_hint(ended, cause, said)}", f"  command: {_command(ended)}"]


def _of_another_machine(outcome: Outcome) -> str | None:
    """The last words of a machine on which nothing has failed."""
    failed = outcome.elsewhere
    if failed is None:
        return None
    shown = [failed.cause, ""] if failed.cause else []
    ended = [f"  ended here because of it: rank {_ranks(outcome.stopped)}"] if outcome.stopped else []
    return "\n".join(
        [*shown, f"accel: on machine {failed.machine}, {failed.host}:", failed.words, *ended, *_logs(outcome)]
    )


def _logs(outcome: Outcome) -> list[str]:
    return [f"  what each rank has printed: {outcome.logs}"] if outcome.logs is not None else []


def _after_signal(outcome: Outcome, number: signal.Signals) -> str:
    lines = [f"accel: the job of {outcome.size} was ended by {number.name} from outside"]
    if outcome.first is not None and outcome.first.status > 0:
        lines.append(f"  rank {outcome.first.rank} (pid {outcome.first.pid}) {how_ended(outcome.first.status)}")
    if outcome.killed:
        lines.append(f"  killed, since still running {outcome.grace_s:g} s later: rank {_ranks(outcome.killed)}")
    return "\n".join(lines)


def signal_name(number: int) -> str:
    """The name of a signal, also of the real-time ones that have none of their own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _ranks(ranks: tuple[int, ...]) -> str:
    return ", ".join(str(rank) for rank in ranks)


def how_ended(status: int) -> str:
    """The end of a process in words."""
    return f"failed with exit code {status}" if status > 0 else f"was killed by {signal_name(-status)}"


def _hint(ended: Ended, cause: Cause | None, said: str | None) -> str:
    if ended.status == STALLED:
        return "processes waited for each other in vain; the report above says who, and where"
    if ended.status > 0:
        if said is None:
            return "its own message tells why"
        return "its own message is above" if said.strip() else "it has printed no error"
    known = {int(number): hint for number, hint in HINTS.items()}
    hint = known.get(-ended.status, "nothing in accel sends this signal")
    if ended.status in (-signal.SIGSEGV, -signal.SIGABRT) and (cause is None or cause.where is None):
        return f"{hint}; {HANDLER}"
    took = f"; it took up to {ended.peak_bytes / 2**30:.2f} GiB" if ended.status == -signal.SIGKILL else ""
    return hint + (took if ended.peak_bytes else "")


def _command(ended: Ended) -> str:
    words = shlex.join(ended.command)
    return words if len(words) <= LONGEST_COMMAND else words[:LONGEST_COMMAND] + " ..."
