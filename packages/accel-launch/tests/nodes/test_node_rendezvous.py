"""What the first machine knows of the others while they come, as a thread beside it notes who is gone."""

from collections import defaultdict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from accel_launch.cli.options import LaunchSettings
from accel_launch.nodes.board import Board
from accel_launch.nodes.board_server import BoardServer
from accel_launch.nodes.node_rendezvous import NodeRendezvous
from accel_launch.nodes.node_spec import NodeSpec
from accel_launch.supervise.signals import HandledSignals
from accel_state.errors import CannotRun


class Growing(dict[str, str]):
    """What the thread of the server writes into, whenever its entries are read one by one."""

    def items(self) -> Any:
        """Yield the entries; another comes in between."""

        def growing() -> Iterator[tuple[str, str]]:
            for entry in super(Growing, self).items():
                self[f"launcher {len(self)}"] = "its launcher has ended"
                yield entry

        return growing()


def test_a_launcher_may_be_found_gone_while_the_first_machine_looks() -> None:
    gone = Growing({"a launcher of no machine": "its launcher has ended"})
    server = cast(BoardServer, SimpleNamespace(notes=defaultdict(list), gone=gone))
    node = NodeSpec(0, 2, "127.0.0.1", 1)
    rendezvous = NodeRendezvous(node, HandledSignals(()), LaunchSettings(), 1, patient=False)
    rendezvous._admit(server, cast(Board, None), 1, late=False)


class Told:
    """A board that takes what the first machine tells, and says it at once."""

    lost = None

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}

    def tell(self, kind: str, name: str, value: Any) -> None:
        self.facts[name] = value

    def known(self, name: str) -> list[Any]:
        return [self.facts[name]] if name in self.facts else []


def begun(rendezvous: NodeRendezvous, number: int, *names: str, late: bool) -> list[str] | None:
    """The names of those that begin a round, once these have come."""
    shared = rendezvous._mine["settings"]
    notes = defaultdict[str, list[Any]](list)
    for rank, name in enumerate(names):
        machine = {"name": name, "place": name, "host": name, "processes": 1, "settings": shared}
        notes[f"{number} place"].append([[rank], machine])
    board = Told()
    rendezvous._admit(cast(BoardServer, SimpleNamespace(notes=notes, gone={})), cast(Board, board), number, late=late)
    went: list[list[str]] = board.facts.get(f"{number} go", [])
    return went[2] if went else None


def of_three() -> NodeRendezvous:
    settings = LaunchSettings(rdzv_backend="c10d")
    return NodeRendezvous(NodeSpec(0, 3, "127.0.0.1", 1, 1), HandledSignals(()), settings, 1, patient=False)


def test_who_has_met_nobody_does_not_start_alone() -> None:
    rendezvous = of_three()
    with pytest.raises(CannotRun, match="machine 1, 2 of 3 did not come within"):
        begun(rendezvous, 1, "a", late=True)
    rendezvous._met = True
    assert begun(rendezvous, 2, "a", late=False) is None
    assert begun(rendezvous, 2, "a", late=True) == ["a"]


def test_machines_that_were_given_up_are_not_waited_for_again() -> None:
    """But all of those that went on, also if another machine comes sooner than one of them."""
    rendezvous = of_three()
    rendezvous._met, rendezvous._fewer = True, frozenset({"a", "b"})
    assert begun(rendezvous, 3, "a", "new", late=False) is None
    assert begun(rendezvous, 3, "a", "b", late=False) == ["a", "b"]
