"""What scripts and pages of these tests import, imported once for all of them."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Lets scripts find scikit-learn imported, which takes each of them 1 s of processor."""
    config.addinivalue_line("world_preload", "sklearn.datasets")
