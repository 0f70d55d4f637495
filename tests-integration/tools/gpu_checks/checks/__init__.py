"""The checks, in the order of what they are worth, divided into three parts."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from gpu_checks.check import Check, Findings, Setup


def _of_module(name: str) -> Callable[[Setup, Findings], None]:
    def run(setup: Setup, findings: Findings) -> None:
        import_module(f"gpu_checks.checks.{name}").run(setup, findings)  # here, as most of them import torch

    return run


#: name of the module, part, and seconds
_PLAN = (
    ("environment", 1, 60),
    ("device_tests", 1, 220),
    ("no_synchronisation", 1, 120),
    ("loss_scaling", 1, 60),
    ("copies_ahead", 1, 60),
    ("asynchronous_save", 2, 150),
    ("group_of_one", 2, 60),
    ("two_ranks", 2, 150),
    ("refusals", 2, 90),
    ("out_of_memory", 2, 60),
    ("float8", 3, 60),
    ("speed", 3, 440),
)

CHECKS = tuple(Check(name, part, limit_s, _of_module(name)) for name, part, limit_s in _PLAN)
