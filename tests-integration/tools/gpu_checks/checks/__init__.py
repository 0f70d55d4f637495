"""The checks, in the order of what they are worth."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from gpu_checks.check import Check, Findings, Setup


def _of_module(name: str) -> Callable[[Setup, Findings], None]:
    def run(setup: Setup, findings: Findings) -> None:
        import_module(f"gpu_checks.checks.{name}").run(setup, findings)  # here, as most of them import torch

    return run


#: name of the module, and seconds
_PLAN = (
    ("environment", 60),
    ("sharded_steps", 110),
    ("no_synchronisation", 80),
    ("offload", 80),
    ("graph_capture", 40),
    ("compilation", 110),
    ("step_costs", 110),
    ("save_costs", 70),
    ("device_tests", 180),
    ("loss_scaling", 40),
    ("copies_ahead", 40),
    ("group_of_one", 40),
    ("asynchronous_save", 80),
    ("two_ranks", 120),
    ("out_of_memory", 40),
    ("rehearsal", 120),
    ("float8", 60),
    ("refusals", 90),
)

CHECKS = tuple(Check(name, limit_s, _of_module(name)) for name, limit_s in _PLAN)
