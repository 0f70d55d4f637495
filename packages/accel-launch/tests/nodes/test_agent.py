"""The ranks that each machine gives its processes; nobody meets here."""

import pytest
from accel_launch.nodes.agent import ranks_of


@pytest.mark.parametrize(("machine", "ranks"), [(0, [0, 1]), (1, [2, 3, 4]), (2, [5])])
def test_ranks_go_on_where_those_of_the_machine_before_end(machine: int, ranks: list[int]) -> None:
    found, world = ranks_of([2, 3, 1], machine)
    assert (list(found), world) == (ranks, 6)
