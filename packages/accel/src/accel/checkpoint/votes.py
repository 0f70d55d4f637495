"""What the ranks of a job say to each other about a checkpoint."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, final

from accel_checkpoint import CheckpointError
from accel_state import ProcessControl

T = TypeVar("T")

logger = logging.getLogger("accel")


@final
class RankVotes:
    """Collects what all ranks have to say: each call is one round of messages. JSON, as nothing is to be unpickled."""

    def __init__(self, processes: ProcessControl) -> None:
        self._processes = processes
        self._warned: set[str] = set()

    def exchange(self, what: str, statement: Any) -> list[Any]:
        """What each rank says.

        Collective: every process must call.
        """
        return [
            json.loads(said) for said in self._processes.run.transport.exchange(what, json.dumps(statement).encode())
        ]

    def require(self, what: str, about: str, problems: list[str], undo: Callable[[], None] = lambda: None) -> None:
        """Returns if no rank has a problem; `undo` is called before the error is raised.

        Raises: CheckpointError, on all ranks, with `about` and the problems of each.
        Collective: every process must call.
        """
        refuse(about, self.exchange(what, problems), undo)

    def write(self, what: str, about: str, work: Callable[[], object], *, each_machine: bool) -> None:
        """Lets the main process work, or that of each machine; the others wait as long as it lives.

        Raises: CheckpointError, on all ranks, if the work fails on one.
        Collective: every process must call.
        """
        processes, problems = self._processes, list[str]()
        first = processes.local_main_process_first if each_machine else processes.main_process_first
        with first():
            if processes.is_local_main_process if each_machine else processes.is_main_process:
                problems = problems_of(work)
        self.require(what, about, problems)

    def gather(self, ranks: Sequence[int], statement: bytes, lengths: Sequence[int]) -> list[Any]:
        """What each rank says, on these ranks, and nothing on others; `lengths` has the bytes of all statements.

        Collective: every process must call.
        """
        transport = self._processes.run.transport
        said = {rank: transport.gather(statement, lengths, rank) for rank in ranks}
        return [json.loads(statement) for statement in said.get(transport.rank, [])]

    def done_by_all(self, ranks: Sequence[int], name: str, work: Callable[[], object]) -> bool:
        """Does the work, and tells whether all these ranks have done theirs; for threads, under a name of its own.

        Raises: CheckpointError if the work fails here; PeerFailed if another of these ranks is gone.
        """
        problems = problems_of(work)
        done = len(ranks) == 1 or self._processes.run.transport.agree_apart(name, ranks, not problems)
        if problems:
            raise CheckpointError(problems[0])
        return done

    def results(self, ranks: Sequence[int], name: str, work: Callable[[], T]) -> list[T]:
        """Does the work, tells its result under a name of its own, and waits for the results of these ranks.

        It has no results if the work of one of them failed. Threads may call it. Results are what JSON has.

        Raises: CheckpointError if the work fails here; PeerFailed if one of these ranks is gone.
        """
        done = list[T]()
        problems = problems_of(lambda: done.append(work()))
        told = self._processes.run.transport.meet(name, ranks, done)
        if problems:
            raise CheckpointError(problems[0])
        return [result for results in told for result in results] if all(told) else []

    def warn_once(self, text: str) -> None:
        """Warns of this on the main process, once."""
        if text not in self._warned:
            self._warned.add(text)
            if self._processes.is_main_process:
                logger.warning("%s", text)


def refuse(about: str, problems: list[list[str]], undo: Callable[[], None] = lambda: None) -> None:
    """Raises: CheckpointError with the problems of all ranks if there are any, when `undo` was called."""
    lines = by_rank(problems)
    if lines:
        undo()
        raise CheckpointError("\n".join([about, *lines]))


def by_rank(problems: list[list[str]]) -> list[str]:
    """The problems of each rank; those of all ranks without numbers of ranks."""
    ranks_of: dict[str, list[int]] = {}
    for rank, lines in enumerate(problems):
        for line in lines:
            ranks_of.setdefault(line, []).append(rank)
    return [
        f"  {line}" if len(ranks) == len(problems) else f"  rank {', '.join(map(str, ranks))}: {line}"
        for line, ranks in ranks_of.items()
    ]


def problems_of(work: Callable[[], object], before: str = "") -> list[str]:
    """Does the work: no problem, or the error that it raised, in words after `before`."""
    try:
        work()
    except CheckpointError as error:
        return [f"{before}{error}"]
    except Exception as error:  # noqa: BLE001 - whatever fails, all processes are to hear of it, and none to wait
        return [f"{before}{type(error).__name__}: {error}"]
    return []
