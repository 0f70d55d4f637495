"""Multiply the limits of pytest-timeout by the factor. Without pytest-timeout nobody calls this hook."""

from __future__ import annotations

from typing import Any

import pytest

from accel_testing.time_limits import stretched


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> object:
    """Start the timer of a test with its limit times the factor. An option, a setting or a mark gives the limit."""
    import pytest_timeout

    return pytest_timeout.pytest_timeout_set_timer(item, settings._replace(timeout=stretched(settings.timeout)))
