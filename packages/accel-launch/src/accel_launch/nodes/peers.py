"""Exchange messages between the machines of a job while their processes run, over the board of the job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from accel_launch.nodes.board import Board, BoardLost
from accel_launch.report.job_result import KILLED

#: an order of failures before all others: the launcher that says it was given up itself
OWN = KILLED - 1


@dataclass(frozen=True, slots=True)
class NodeFailure:
    """The end of a job on a machine.

    Args:
        machine: Rank of the machine.
        host: Its name.
        words: What happened.
        code: Exit code.
        traceback: Traceback of the rank that failed.
        order: Order of blame, as in `ProcessExit`.
        outside: True if a signal from outside ended the job.
        lost: True if the machine is gone.
    """

    machine: int
    host: str
    words: str
    code: int
    traceback: str = ""
    order: int = KILLED
    outside: bool = False
    lost: bool = False


class Peers:
    """The machines of a round, as one machine sees the others, at no cost: the board tells what is new.

    Args:
        board: Board of the job.
        number: Number of the round.
        machine: Rank of this machine.
        hosts: Name of each machine.
        counts: Number of processes of each machine.
        names: Name of each launcher on the board.
    """

    def __init__(
        self,
        board: Board,
        number: int,
        machine: int,
        hosts: Sequence[str],
        counts: Sequence[int],
        names: Sequence[str],
    ) -> None:
        self._board, self._round, self.machine, self.size = board, number, machine, len(hosts)
        self.hosts, self.names = hosts, names
        #: the first rank of this machine, and the number of all ranks
        self.first, self.world = sum(counts[:machine]), sum(counts)
        #: all that have failed, this machine among them, in an order that is the same on all
        self.failures: list[NodeFailure] = []
        #: those whose loss this machine, as the first, has announced
        self._missed: set[int] = set()

    def publish(self, key: str, content: object) -> None:
        """Send the other machines something that they wait for."""
        self._board.tell("write", self._key(key), content)

    def published(self, key: str) -> Sequence[Any]:
        """Return what machines have published below a key, as far as it is known here."""
        return self._board.known(self._key(key))

    def announce(self, words: str, code: int, *, machine: int | None = None, **more: Any) -> None:
        """Send all machines a failure.

        Args:
            words: What happened.
            code: Exit code.
            machine: Rank of the machine. Default: this machine.
            more: Other fields of `NodeFailure`.
        """
        rank = self.machine if machine is None else machine
        self.publish("failures", asdict(NodeFailure(rank, self.hosts[rank], words, code, **more)))

    def look(self) -> list[NodeFailure]:
        """Return the failures since the last look.

        Raises:
            BoardLost: There are none, and there can be no more.
        """
        lost = self._board.lost  # before what it has left behind
        gone = dict(self._board.gone) if self.machine == 0 else {}
        new = [NodeFailure(**line) for line in self.published("failures")[len(self.failures) :]]
        for machine, name in enumerate(self.names):
            if name in gone and machine not in self._missed:
                self._missed.add(machine)
                self.announce(f"  the machine is gone: {gone[name]}", 1, machine=machine, lost=True)
        self.failures += new
        if lost is not None and not new:
            raise lost
        return new

    @property
    def elsewhere(self) -> NodeFailure | None:
        """The first failure of another machine, if any is known."""
        return next((failure for failure in self.failures if failure.machine != self.machine), None)

    @property
    def any_lost(self) -> bool:
        """True if a machine is gone."""
        return any(failure.lost for failure in self.failures)

    def lost_board(self, lost: BoardLost) -> NodeFailure:
        """Note, as the board cannot tell it, that the first machine is gone, or that this machine was given up."""
        machine, order = (self.machine, OWN) if lost.own else (0, KILLED)
        failure = NodeFailure(machine, self.hosts[machine], f"  the machine is gone: {lost}", 1, order=order, lost=True)
        self.failures.append(failure)
        return failure

    def _key(self, name: str) -> str:
        return f"{self._round} {name}"
