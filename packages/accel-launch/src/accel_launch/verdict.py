"""Says in one block how a job ended, if it did not end well."""

import shlex
import signal

from accel_state.exits import STOPPED
from accel_state.stall import STALLED

from accel_launch.supervise import Ended, Outcome

HINTS = {
    signal.SIGKILL: "probably out of memory: the system, or a container's limit, kills a process that takes too much",
    signal.SIGSEGV: "it crashed in native code; run it with PYTHONFAULTHANDLER=1 to see the Python line",
    signal.SIGABRT: "native code gave up; its message is above. PYTHONFAULTHANDLER=1 shows the Python line",
    signal.SIGBUS: "often a full /dev/shm: use fewer data loading workers, or give the container more shared memory",
    signal.SIGILL: "native code was built for another kind of processor",
    signal.SIGTERM: "something outside the job asked this process to end",
}
LONGEST_COMMAND = 200


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
        return None
    first = outcome.first
    lines = [
        f"accel: rank {first.rank} of {outcome.size} (pid {first.pid}) {_how(first.status)}",
        f"  {_hint(first)}",
        f"  command: {_command(first)}",
    ]
    if outcome.stopped:
        lines.append(f"  ended because of it: rank {_ranks(outcome.stopped)}")
    lines += [f"  rank {rank} was in {call}" for rank, call in sorted(outcome.waiting.items())]
    return "\n".join(lines)


def _after_signal(outcome: Outcome, number: signal.Signals) -> str:
    lines = [f"accel: the job of {outcome.size} was ended by {number.name} from outside"]
    if outcome.first is not None and outcome.first.status > 0:
        lines.append(f"  rank {outcome.first.rank} (pid {outcome.first.pid}) {_how(outcome.first.status)}")
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


def _how(status: int) -> str:
    return f"failed with exit code {status}" if status > 0 else f"was killed by {signal_name(-status)}"


def _hint(ended: Ended) -> str:
    if ended.status == STALLED:
        return "processes waited for each other in vain; the report above says who, and where"
    if ended.status > 0:
        return "its own message is above"
    known = {int(number): hint for number, hint in HINTS.items()}
    return known.get(-ended.status, "nothing in accel sends this signal")


def _command(ended: Ended) -> str:
    words = shlex.join(ended.command)
    return words if len(words) <= LONGEST_COMMAND else words[:LONGEST_COMMAND] + " ..."
