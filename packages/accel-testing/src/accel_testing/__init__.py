"""Test multi-process PyTorch code. An import of this package does not import torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from accel_testing.failure import NotSendable, RankFailure
from accel_testing.process_pool import MakePool, ProcessPool
from accel_testing.time_limits import stretched

if TYPE_CHECKING:
    from accel_testing.equivalence import assert_same_numbers

__all__ = [
    "MakePool",
    "NotSendable",
    "ProcessPool",
    "RankFailure",
    "assert_same_numbers",
    "stretched",
]

# so that `pytest -p accel_testing` means the same installed (an entry point of that name) and from a bare checkout;
# no __dir__ here: pytest asks for every name of a plug-in that is in its dir(), and would import torch
pytest_plugins = ["accel_testing.plugin"]


def __getattr__(name: str) -> Any:
    if name != "assert_same_numbers":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module("accel_testing.equivalence"), name)
