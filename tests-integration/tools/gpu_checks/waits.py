"""Counts how often the host waits for the GPU."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from gpu_checks.check import Setup

#: torch's words for a wait; it says of the mode itself, once, that it does not detect all synchronizing operations
WAIT = "called a synchronizing"
#: calls of the driver that wait, which a profile names, also those that torch makes without its words
CALLS = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize", "cudaMemcpy")
SPAN = "gpu_checks: the loop"
Loop = Callable[[], object]


def waits_in(loop: Loop) -> list[str]:
    """The places at which the host waited for the GPU."""
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            loop()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return [f"{wait.filename}:{wait.lineno}" for wait in told if WAIT in str(wait.message)]


def waiting_calls(setup: Setup, loop: Loop) -> Counter[str]:
    """The calls of the driver, on any thread, that wait for the GPU while the loop runs; none without CUDA."""
    kinds = [ProfilerActivity.CPU] if setup.rehearsal else [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=kinds) as seen, record_function(SPAN):
        loop()
        # the profile waits for the GPU at its own end
    events = list(seen.events() or ())
    span = next(event.time_range for event in events if event.name == SPAN and event.device_type.name == "CPU")
    inside = (event for event in events if span.start <= event.time_range.start <= span.end)
    return Counter(event.name for event in inside if event.name in CALLS)


def in_words(calls: Counter[str]) -> str:
    """The calls, or "none"."""
    return ", ".join(f"{count} {name}" for name, count in sorted(calls.items())) or "none"
