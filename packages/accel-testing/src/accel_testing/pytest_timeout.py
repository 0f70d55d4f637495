"""The limits of pytest-timeout, stretched; without pytest-timeout nobody calls this hook."""

from __future__ import annotations

from typing import Any

import pytest

from accel_testing.time_limits import stretched


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> object:
    """Start the timer of a test with its limit, of an option, a setting or a mark, times the factor."""
    import pytest_timeout

    return pytest_timeout.pytest_timeout_set_timer(item, settings._replace(timeout=stretched(settings.timeout)))
