"""Two machines for the tests that need them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from namespaces import Machines, Node, two_nodes


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, Node]]:
    """Network namespaces with a cable between, for the tests of one file."""
    with two_nodes(tmp_path_factory.mktemp("nodes")) as found:
        yield found


@pytest.fixture
def machines(nodes: tuple[Node, Node], tmp_path: Path) -> Iterator[Machines]:
    """What starts launchers on them; nothing may run there when the test is over."""
    found = Machines(nodes, tmp_path)
    yield found
    left = [found.processes(number) for number in (0, 1)]
    found.end()
    assert left == [[], []]
