"""Two machines for the tests that need them."""

from collections.abc import Iterator

import pytest
from namespaces import Node, two_nodes


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, Node]]:
    """Network namespaces with a cable between, for the tests of one file."""
    with two_nodes(tmp_path_factory.mktemp("nodes")) as found:
        yield found
