"""The fixture `forking_python`: a stand-in for `sys.executable`, for the tests of this repository."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from forked_programs.forking_python import ForkingPython


@pytest.fixture(scope="session")
def forking_python(request: pytest.FixtureRequest) -> Iterator[str]:
    """Give the path of a stand-in for `sys.executable`, whose programs are forked with torch imported."""
    preload = [*request.config.getini("world_preload"), *request.config.getoption("--preload")]
    with ForkingPython(preload) as python:
        yield python.executable
