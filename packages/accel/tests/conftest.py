"""What every test of the facade ends with."""

from collections.abc import Iterator

import pytest
from accel_state import release


@pytest.fixture(autouse=True)
def _released() -> Iterator[None]:
    """The next test makes its own run, whatever this one made."""
    yield
    release()
