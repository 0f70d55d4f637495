"""What every test ends with, and which tests need the facade."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from accel_state import release

collect_ignore = [] if find_spec("accel") is not None else ["test_settings.py", "test_training.py"]


@pytest.fixture(autouse=True)
def _released() -> Iterator[None]:
    """The next test makes its own run, whatever this one made."""
    yield
    release()
