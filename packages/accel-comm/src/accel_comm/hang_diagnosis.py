"""Find out from the activity of each rank whether a rank waits in vain, and describe it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

#: seconds after which a wait is in vain when a process is gone without a word; exchanges with it fail by themselves
GONE_S = 30.0

#: seconds after which ranks that wait in different calls do not wait for a message that is on its way
STANDS_S = 5.0


@dataclass(frozen=True, slots=True)
class RankStatus:
    """The activity of a rank.

    Args:
        rank: The rank.
        number: Number of its newest exchange; 0 before the first.
        what: Name of that operation.
        call: That operation, its data and its line; None before the first exchange.
        waits: Seconds that it has waited there; None outside of exchanges.
        patient: Whether that exchange waits for work that may last.
        doing: Line of the script that the rank is at.
        ended: Whether its script is over.
        asked: Number of the question that this answers.
        moves: Whether the exchange moves tensors, which take time on a slow network.
        skipped: Range of the exchanges of a name that the rank had no need of.
    """

    rank: int
    number: int = 0
    what: str = ""
    call: str | None = None
    waits: float | None = None
    patient: bool = False
    doing: str = ""
    ended: bool = False
    asked: int = 0
    moves: bool = False
    skipped: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.ended:
            return f"has come to the end of its script{f'; its last was {self.call}' if self.call else ''}"
        if self.waits is not None:
            return f"has been waiting for {self.waits:.0f} s in {self.call} (exchange {self.number})"
        last = f"; its last was {self.call} (exchange {self.number})" if self.call is not None else ""
        return f"is in no exchange of accel's, but at {self.doing}{last}"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A fault of the job.

    Args:
        text: The fault in words, with a line for each rank.
        fatal: Whether the job has to end because of it.
        sure: Whether it holds however old the statuses are.
    """

    text: str
    fatal: bool
    sure: bool = True


def diagnose(
    statuses: Sequence[RankStatus | None],
    before: Sequence[int | None],
    alive: Sequence[bool | None],
    *,
    limit: float,
    notice: float,
) -> Diagnosis | None:
    """Return the fault in the activities of ranks, or None if there is none.

    It is fatal if a rank waits for a rank that is gone or at its end, or for one that had no need of the exchange, if
    all ranks wait in different calls, and if a wait is longer than the limit.

    Args:
        statuses: Activity of each rank; None if a rank does not answer.
        before: Number of the exchange in which each rank waited at the look before this one; None if in none.
        alive: Whether the process of each rank lives; None if nobody knows.
        limit: Seconds after which a wait is a fault.
        notice: Seconds after which a wait is reported.
    """
    known = [status for status in statuses if status is not None]
    waiting = [status for status in known if status.waits is not None]
    if not waiting:
        return None
    # who waits for a process that works, however long, waits for no other; should that one die, it hears of it
    impatient = [status for status in waiting if not status.patient]
    longest = max((status.waits or 0.0 for status in impatient), default=0.0)
    gone = [rank for rank, lives in enumerate(alive) if lives is False and statuses[rank] is None]
    # one that ended after an exchange is not missed in it: others may still wait there, for one that is slow
    farthest = max((status.number for status in impatient), default=0)
    over = [status.rank for status in known if status.ended and status.number < farthest]
    table = "".join(f"\n  rank {rank} {_words(status, alive[rank])}" for rank, status in enumerate(statuses))
    if gone and longest >= GONE_S:
        return Diagnosis(f"rank {_ranks(gone)} is gone, and others wait for it{table}", fatal=True, sure=False)
    if any(status.number in range(*one.skipped.get(status.what, [0])) for status in impatient for one in known):
        return Diagnosis(f"a rank needs an exchange that others do not{table}{UNLIKE}", fatal=True)
    if over and impatient:
        return Diagnosis(
            f"rank {_ranks(over)} has ended, and others wait for it{table}\n{_ADVICE}", fatal=True, sure=False
        )
    if len(waiting) == len(statuses) and _stands(waiting, before):
        return Diagnosis(f"all ranks wait for each other{table}\n{_ADVICE}", fatal=True)
    if longest >= limit:
        return Diagnosis(
            f"a wait has lasted {longest:.0f} s, and {limit:.0f} s is its limit{table}\n{_ADVICE}", fatal=True
        )
    if longest >= notice:
        return Diagnosis(f"a wait has lasted {longest:.0f} s (its limit is {limit:.0f} s){table}", fatal=False)
    return None


ADVICE = (
    "Every rank has to call the same operations in the same order: look for one inside an `if`, or after a `break`."
)
#: name of the comparison of ranks, which is left out while they use the parameters that they used before
COMPARED = "parameters that a backward has used"
UNLIKE = (
    "\nRanks of a sharded model that use different parameters, such as experts, need"
    " FullyShardedDataParallelPlugin(find_unused_parameters=True)."
)
_ADVICE = (
    f"{ADVICE} Work of one rank that takes long belongs into main_process_first(); the limit is"
    " InitProcessGroupKwargs(timeout=...)."
)


def _stands(now: Sequence[RankStatus], before: Sequence[int | None]) -> bool:
    still = all(before[status.rank] == status.number and (status.waits or 0.0) >= STANDS_S for status in now)
    # those that are ahead may have their part of what the others still receive
    behind = min(status.number for status in now)
    last = [status for status in now if status.number == behind]
    if len(last) < len(now) and all(status.moves and status.what == last[0].what for status in last):
        return False
    # what is the same on all of them is on its way, however slow
    return still and len({status.what for status in now}) > 1


def _words(status: RankStatus | None, lives: bool | None) -> str:
    gone = "is gone" if lives is False else "does not answer: it is stopped, or in code that never lets go of Python"
    return str(status or gone)


def _ranks(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
