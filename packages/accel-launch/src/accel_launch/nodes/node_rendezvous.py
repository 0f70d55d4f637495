"""Let the machines of a job meet, at ranks that are given, or in the order in which they come."""

from __future__ import annotations

import os
import socket
import time
import uuid
from dataclasses import replace
from typing import Any, final

from accel_state.errors import CannotRun

from accel_launch.cli.options import C10D, LaunchSettings
from accel_launch.job.plan import LOOPBACK, SHARED_SETTINGS
from accel_launch.nodes.addresses import address_towards, is_first
from accel_launch.nodes.board import Board, BoardLost
from accel_launch.nodes.board_server import BoardServer
from accel_launch.nodes.node_spec import NodeSpec
from accel_launch.nodes.open_board import LOOK_S, join_board, not_begun, serve_board
from accel_launch.nodes.peers import Peers
from accel_launch.supervise.signals import Interrupted, SignalSource

#: seconds for others to read why they are refused; and for the first machine to be heard by all at the end
READING_S, LEAVING_S = 1.0, 5.0
#: what a machine may leave out: another one says it for all
COUNT = "num_processes"


@final
class NodeRendezvous:
    """A meeting of machines, in a round for each start. The first machine serves the board for all.

    With the backend static their ranks are given. With c10d a machine may come without a rank, or for a lost machine.

    Args:
        node: This machine among the others.
        source: Source of signals.
        settings: Settings of the launch.
        processes: Number of processes of this machine.
        patient: Wait for the name of the first machine, if nobody knows it yet.
    """

    def __init__(
        self, node: NodeSpec, source: SignalSource, settings: LaunchSettings, processes: int, *, patient: bool
    ) -> None:
        self._node, self._source, self._backend, self._patient = node, source, settings.rdzv_backend, patient
        self._wait_s = settings.join_timeout
        self._serves = node.rank == 0 if node.rank is not None else is_first(node)
        host, address = socket.gethostname(), address_towards(node)
        shared = {
            "num_machines": node.count,
            "min_machines": node.least,
            **{name: getattr(settings, name) for name in (COUNT, *SHARED_SETTINGS)},
        }
        place = host if self._serves else f"{host} ({address})"
        self._mine: dict[str, Any] = {"host": host, "place": place, "name": f"{host} {os.getpid()} {uuid.uuid4().hex}"}
        self._mine |= {"settings": shared, "processes": processes}
        self._server: BoardServer | None = None
        self._board: Board | None = None
        self._round, self._met = 0, False
        self._rank: int | None = node.rank
        #: those that have come, as the first machine sees it
        self._machines: dict[int, Any] = {}
        #: the names of those of the last round, if it had fewer than all: nobody waits again for the others
        self._fewer = frozenset[str]()
        #: those that have to come again, as nobody may come for them
        self._expected: dict[int, Any] = {}

    def __enter__(self) -> NodeRendezvous:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Close the board. If this launcher fails, others are to miss it."""
        if kind is not None and not issubclass(kind, CannotRun):
            return
        if self._server is not None:
            self._server.leave([machine["name"] for machine in self._machines.values()], LEAVING_S)
        elif self._board is not None:
            self._board.leave(LEAVING_S)

    def meet(self) -> Peers:
        """Return the machines of the next round, once all have come.

        Raises:
            CannotRun: Machines have not come, are gone, or do not fit. The error names them.
            BoardLost: The first machine is gone, or this launcher was given up.
            Interrupted: A signal has ended the wait.

        Collective:
            Every machine of the job must call.
        """
        until = time.monotonic() + self._wait_s
        try:
            while True:
                if self._board is None:
                    self._board = self._open(max(until - time.monotonic(), 0.0))
                try:
                    return self._join(self._board, until)
                except BoardLost as lost:
                    if lost.own or not (self._met and self._node.survives_first):
                        raise
                # another machine may come in the place of the first one, whose rounds begin anew
                self._board, self._round = None, 0
        except Interrupted as interrupted:
            awaited = f"{self._absent()} to come" if self._serves else f"machine 0, {self._node.host}, to begin"
            raise Interrupted(interrupted.number, awaited) from None

    def gone(self, lost: BoardLost) -> CannotRun:
        """Return the error of a machine that has lost the others before its processes run."""
        rank = self._rank if lost.own else 0
        who = "this machine" if rank is None else f"machine {rank}"
        return CannotRun("launch", [f"{who}, {self._node.host if rank == 0 else self._mine['place']}, is gone: {lost}"])

    def _open(self, wait_s: float) -> Board:
        node, name, patient = self._node, self._mine["name"], self._patient
        if self._serves:
            try:
                self._server, board = serve_board(node, name, self._source, wait_s if patient else 0.0)
                return board
            except CannotRun:
                if node.rank is not None:
                    raise
            self._serves = False  # another launcher of this machine has come sooner
        try:
            return join_board(node, name, self._source, wait_s, patient=patient)
        except CannotRun:
            if not (self._met and node.survives_first):
                raise
        # nobody has come in the place of the first machine
        self._serves, alone = True, replace(node, rank=0, host=LOOPBACK, port=0)
        self._server, board = serve_board(alone, name, self._source, 0.0)
        return board

    def _join(self, board: Board, until: float) -> Peers:
        """Return the machines of a round, once all have come."""
        self._machines = {}
        number = self._round
        if self._serves:
            board.tell("write", "round", number + 1)
        while (peers := self._admitted(board, number)) is None:
            if board.lost is not None:
                raise board.lost
            late_s = time.monotonic() - until
            if self._server is not None:
                # until the new round is known here, those of the last are no matter
                if number > self._round:
                    self._admit(self._server, board, number, late=late_s >= 0)
            elif late_s >= READING_S:
                raise not_begun(self._node, self._wait_s)
            newest = max(board.known("round"), default=0)
            if newest > number:
                number = newest
                any_rank = self._node.rank is None and not self._serves
                places = list(range(1, self._node.count)) if any_rank else [self._node.rank or 0]
                board.tell("note", f"{number} place", [places, self._mine])
            try:
                self._source.pause(LOOK_S)
            except Interrupted as interrupted:
                why = f"by {interrupted.number.name} from outside, while its launcher waited for the others"
                if self._serves:
                    board.tell("write", f"{number} refused", [f"machine 0, {self._mine['place']}, was ended {why}"])
                else:
                    board.tell("note", f"{number} left", [self._mine["name"], f"was ended {why}"])
                raise
        self._round, self._rank, self._met = number, peers.machine, True
        self._fewer = frozenset(peers.names if len(peers.names) < self._node.count else ())
        self._expected = {} if self._backend == C10D else self._machines
        return peers

    def _admitted(self, board: Board, number: int) -> Peers | None:
        """Return the machines of a round that has begun with this machine. Raise CannotRun if it is refused."""
        for problems in board.known(f"{number} refused"):
            raise CannotRun("launch", problems)
        for hosts, counts, names in board.known(f"{number} go") if number > self._round else ():
            if self._mine["name"] in names:
                return Peers(board, number, names.index(self._mine["name"]), hosts, counts, names)
            if self._backend != C10D:
                rank = self._node.rank or 0
                raise CannotRun("launch", [_given_twice(rank, hosts[rank], self._mine["place"])])
        return None

    def _admit(self, server: BoardServer, board: Board, number: int, *, late: bool) -> None:
        """Let all begin once they have come, as the first machine, or refuse if one is gone, late, or does not fit."""
        node, machines = self._node, self._machines
        machines.clear()
        problems = []
        for places, machine in server.notes[f"{number} place"]:
            rank = next((place for place in places if place not in machines), None)
            if rank is not None:
                machines[rank] = machine
                problems += self._differences(machine)
            elif self._backend != C10D:
                problems.append(_given_twice(places[0], machines[places[0]]["place"], machine["place"]))
        left = dict(server.notes[f"{number} left"])
        left |= {name: f"is gone: {why}" for name, why in dict(server.gone).items()}  # a thread adds to it
        for rank, machine in sorted((self._expected | machines).items()):
            if machine["name"] in left:
                problems.append(f"machine {rank}, {machine['place']}, {left[machine['name']]}")
        if problems:
            self._refuse(board, number, problems)
        # only who has met the others goes on without them: at the first start they may be late, and start alone too
        least = (node.least if self._met else None) or node.count
        again = self._fewer and self._fewer <= {machine["name"] for machine in machines.values()}
        if len(machines) == node.count or again or (late and len(machines) >= least):
            # all that machines know of each other comes at once: one that is lost later is missed, and not waited for
            told = [machines[rank] for rank in sorted(machines)]
            board.tell("write", f"{number} go", [[one[fact] for one in told] for fact in ("host", "processes", "name")])
        elif late:
            here = ", ".join(f"{rank} ({machine['place']})" for rank, machine in sorted(machines.items()))
            problem = (
                f"{self._absent()} did not come within {self._wait_s:g} s; here: machine {here}. Start accel"
                f" launch there with --main_process_ip {node.host} --main_process_port {node.port}, or wait"
                " longer: --join_timeout"
            )
            self._refuse(board, number, [problem])

    def _absent(self) -> str:
        absent = [str(rank) for rank in range(self._node.count) if rank not in (self._machines or (0,))]
        return f"machine {', '.join(absent)} of {self._node.count}"

    def _differences(self, other: dict[str, Any]) -> list[str]:
        """Return the settings in which another machine differs from this machine, in words."""
        problems = []
        for name, mine in self._mine["settings"].items():
            theirs = other["settings"].get(name)
            if mine != theirs and not (name == COUNT and None in (mine, theirs)):
                why = "it counts the processes of all machines together, so give" if name == COUNT else "give"
                problems.append(
                    f"{name} is {mine} on {self._mine['place']}, and {theirs} on {other['place']}: {why} all the same"
                )
        return problems

    def _refuse(self, board: Board, number: int, problems: list[str]) -> None:
        """Raise on all machines why they cannot begin. What another machine has told before counts."""
        key, until = f"{number} refused", time.monotonic() + READING_S
        board.tell("write", key, problems)
        while not board.known(key) and board.lost is None and time.monotonic() < until:
            self._source.pause(LOOK_S)
        raise CannotRun("launch", [*board.known(key), problems][0])


def _given_twice(rank: int, one: str, other: str) -> str:
    return f"machine_rank {rank} was given on two machines, {one} and {other}: give each its own"
