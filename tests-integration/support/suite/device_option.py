"""Option --device and fixture `device`: the device that tests which run on any device are run on."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --device."""
    parser.getgroup("suite").addoption(
        "--device", choices=["cpu", "cuda", "xla"], default="cpu", help="kind of device that fixture `device` gives"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and import torch_xla for --device=xla before any test, as it changes `os.environ`."""
    config.addinivalue_line("markers", "device: the test uses the fixture `device`; given to it by this plug-in")
    if config.getoption("--device") == "xla" and find_spec("torch_xla") is not None:
        import_module("torch_xla")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that run on any device, so that `-m device` chooses them."""
    for item in items:
        if isinstance(item, pytest.Function) and "device" in item.fixturenames:
            item.add_marker("device")


@pytest.fixture
def device(request: pytest.FixtureRequest) -> torch.device:
    """The device of --device; the test is skipped when this machine has none."""
    import torch

    kind: str = request.config.getoption("--device")
    if kind == "cuda" and not torch.cuda.is_available():
        pytest.skip("--device=cuda: torch.cuda.is_available() is False on this machine")
    if kind == "xla":
        if find_spec("torch_xla") is None:
            pytest.skip("--device=xla: torch_xla is not installed")
        # by name: torch_xla has no wheel for most machines, and a type checker stops at its import
        xla: torch.device = import_module("torch_xla").device()
        return xla
    return torch.device(kind)
