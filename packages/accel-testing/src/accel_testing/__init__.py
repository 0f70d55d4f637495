"""Tests of multi-process PyTorch code; importing this package does not import torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from accel_testing.failure import NotSendable, RankFailure
from accel_testing.process_pool import MakePool, ProcessPool
from accel_testing.programs.forking_python import ForkingPython
from accel_testing.soak import Cases, in_soak
from accel_testing.time_limits import stretched

if TYPE_CHECKING:
    from accel_testing.equivalence import assert_same_numbers
    from accel_testing.toy_models import Mlp, RangeDataset, RangeStream, Regression

__all__ = [
    "Cases",
    "ForkingPython",
    "MakePool",
    "Mlp",
    "NotSendable",
    "ProcessPool",
    "RangeDataset",
    "RangeStream",
    "RankFailure",
    "Regression",
    "assert_same_numbers",
    "in_soak",
    "stretched",
]

# so that `pytest -p accel_testing` means the same installed (an entry point of that name) and from a bare checkout;
# no __dir__ here: pytest asks for every name of a plug-in that is in its dir(), and would import torch
pytest_plugins = ["accel_testing.plugin"]

_NEEDS_TORCH = {
    "Mlp": "accel_testing.toy_models",
    "RangeDataset": "accel_testing.toy_models",
    "RangeStream": "accel_testing.toy_models",
    "Regression": "accel_testing.toy_models",
    "assert_same_numbers": "accel_testing.equivalence",
}


def __getattr__(name: str) -> Any:
    if name not in _NEEDS_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_NEEDS_TORCH[name]), name)
