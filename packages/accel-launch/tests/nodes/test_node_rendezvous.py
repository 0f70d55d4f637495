"""What the first machine knows of the others while they come, as a thread beside it notes who is gone."""

from collections import defaultdict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

from accel_launch.cli.options import LaunchSettings
from accel_launch.nodes.board import Board
from accel_launch.nodes.board_server import BoardServer
from accel_launch.nodes.node_rendezvous import NodeRendezvous
from accel_launch.nodes.node_spec import NodeSpec
from accel_launch.supervise.signals import HandledSignals


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
