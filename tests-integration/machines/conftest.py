"""Two machines for the tests that need them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from forked_programs.forking_python import ForkingPython
from namespaces import Machines, Node, two_nodes


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, Node]]:
    """Network namespaces with a cable between, for the tests of one file."""
    with two_nodes(tmp_path_factory.mktemp("nodes")) as found:
        yield found


def ended(machines: Machines) -> Iterator[Machines]:
    """Nothing may run on the machines when the test is over."""
    yield machines
    left = [machines.processes(number) for number in (0, 1)]
    machines.end()
    assert left == [[], []]


@pytest.fixture
def machines(nodes: tuple[Node, Node], tmp_path: Path) -> Iterator[Machines]:
    """What starts launchers on the machines."""
    yield from ended(Machines(nodes, tmp_path))


@pytest.fixture(scope="module")
def pythons(request: pytest.FixtureRequest, nodes: tuple[Node, Node]) -> Iterator[tuple[ForkingPython, ForkingPython]]:
    """What forks programs on each of them."""
    preload = [*request.config.getini("world_preload"), "accel_launch.nodes.run_on_node"]
    zero, one = nodes
    with ForkingPython(preload, within=zero.command()) as here, ForkingPython(preload, within=one.command()) as there:
        yield here, there


@pytest.fixture
def forked_machines(
    nodes: tuple[Node, Node], pythons: tuple[ForkingPython, ForkingPython], tmp_path: Path
) -> Iterator[Machines]:
    """What starts launchers on the machines, forked, for tests that look at no process ids."""
    yield from ended(Machines(nodes, tmp_path, pythons))
