"""Let the ranks of a job agree on a checkpoint, by messages."""

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
class RankConsensus:
    """The rounds of messages in which ranks agree. Messages are JSON, as nothing is to be unpickled."""

    def __init__(self, processes: ProcessControl) -> None:
        self._processes = processes
        self._warned: set[str] = set()

    def exchange(self, what: str, statement: Any) -> list[Any]:
        """Return what each rank says.

        Args:
            what: The name of the round, the same on all ranks.
            statement: What this rank says, as JSON has it.

        Collective:
            Every process must call.
        """
        return [
            json.loads(said) for said in self._processes.run.transport.exchange(what, json.dumps(statement).encode())
        ]

    def require(self, what: str, about: str, problems: list[str], undo: Callable[[], None] = lambda: None) -> None:
        """Raise on all ranks if one has a problem.

        Args:
            what: The name of the round, the same on all ranks.
            about: The first line of the error.
            problems: Those of this rank.
            undo: Is called before the error is raised.

        Raises:
            CheckpointError: It has the problems of each rank.

        Collective:
            Every process must call.
        """
        refuse(about, self.exchange(what, problems), undo)

    def write(self, what: str, about: str, work: Callable[[], object], *, each_machine: bool) -> None:
        """Let the main process work, or that of each machine, while the others wait as long as it lives.

        Args:
            what: The name of the round, the same on all ranks.
            about: The first line of the error.
            work: The work.
            each_machine: Whether the main process of each machine works.

        Raises:
            CheckpointError: The work fails on one rank; raised on all.

        Collective:
            Every process must call.
        """
        processes = self._processes
        problems: list[str] = []
        first = processes.local_main_process_first if each_machine else processes.main_process_first
        with first():
            if processes.is_local_main_process if each_machine else processes.is_main_process:
                problems = problems_of(work)
        self.require(what, about, problems)

    def gather(self, ranks: Sequence[int], statement: bytes, lengths: Sequence[int]) -> list[Any]:
        """Return what each rank says on the ranks that want it, and nothing on the others.

        Args:
            ranks: The ranks that want it.
            statement: What this rank says.
            lengths: The bytes of the statements of all ranks.

        Collective:
            Every process must call.
        """
        transport = self._processes.run.transport
        said = {rank: transport.point_to_point.gather(statement, lengths, rank) for rank in ranks}
        return [json.loads(statement) for statement in said.get(transport.rank, [])]

    def done_by_all(self, ranks: Sequence[int], name: str, work: Callable[[], object]) -> bool:
        """Do some work in a thread, and return True if all ranks have done theirs.

        Args:
            ranks: The ranks that have work.
            name: A name that no other work has.
            work: The work of this rank.

        Raises:
            CheckpointError: The work fails here.
            PeerFailed: Another of these ranks is gone.
        """
        problems = problems_of(work)
        done = len(ranks) == 1 or self._processes.run.store.agree(name, ranks, not problems)
        if problems:
            raise CheckpointError(problems[0])
        return done

    def results(self, ranks: Sequence[int], name: str, work: Callable[[], T]) -> list[T]:
        """Do some work, and return the results of other ranks, or nothing if the work of one has failed.

        Threads may call it. Results are what JSON has.

        Args:
            ranks: The ranks whose results to wait for.
            name: A name that no other work has.
            work: The work of this rank.

        Raises:
            CheckpointError: The work fails here.
            PeerFailed: One of these ranks is gone.
        """
        done: list[T] = []
        problems = problems_of(lambda: done.append(work()))
        told = self._processes.run.store.exchange_notes(name, ranks, done)
        if problems:
            raise CheckpointError(problems[0])
        return [result for results in told for result in results] if all(told) else []

    def warn_once(self, text: str) -> None:
        """Warn of this on the main process, once."""
        if text not in self._warned:
            self._warned.add(text)
            if self._processes.is_main_process:
                logger.warning("%s", text)


def refuse(about: str, problems: list[list[str]], undo: Callable[[], None] = lambda: None) -> None:
    """Raise if any rank has a problem.

    Args:
        about: The first line of the error.
        problems: Those of each rank.
        undo: Is called before the error is raised.

    Raises:
        CheckpointError: It has the problems of all ranks.
    """
    lines = by_rank(problems)
    if lines:
        undo()
        raise CheckpointError("\n".join([about, *lines]))


def by_rank(problems: list[list[str]]) -> list[str]:
    """Return the problems of each rank, and those of all ranks without numbers of ranks."""
    ranks_of: dict[str, list[int]] = {}
    for rank, lines in enumerate(problems):
        for line in lines:
            ranks_of.setdefault(line, []).append(rank)
    return [
        f"  {line}" if len(ranks) == len(problems) else f"  rank {', '.join(map(str, ranks))}: {line}"
        for line, ranks in ranks_of.items()
    ]


def problems_of(work: Callable[[], object], before: str = "") -> list[str]:
    """Do some work, and return the error that it raised, in words, or nothing."""
    try:
        work()
    except CheckpointError as error:
        return [f"{before}{error}"]
    except Exception as error:  # noqa: BLE001 - whatever fails, all processes are to hear of it, and none to wait
        return [f"{before}{type(error).__name__}: {error}"]
    return []
