"""Profile a block of the script with torch.profiler, and write a Chrome trace for each process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from accel.handlers import ProfileKwargs

TRACE = "profile_{rank}.json"


@contextmanager
def profiled(asked: ProfileKwargs, rank: int) -> Iterator[torch.profiler.profile]:
    """Let torch.profiler watch the block.

    Args:
        asked: What is recorded, and where.
        rank: The rank of this process, for the name of its trace.

    Raises:
        ValueError: torch knows no such activities.
    """
    known = {activity.name.lower(): activity for activity in torch.profiler.ProfilerActivity.__members__.values()}
    unknown = [name for name in asked.activities or () if name not in known]
    if unknown:
        names = ", ".join(sorted(known))
        raise ValueError(f"ProfileKwargs: activities={unknown}: expected some of {names}")
    chosen = None if asked.activities is None else [known[name] for name in asked.activities]
    schedule = None if asked.schedule_option is None else torch.profiler.schedule(**asked.schedule_option)
    with torch.profiler.profile(
        activities=chosen,
        schedule=schedule,
        on_trace_ready=asked.on_trace_ready,
        record_shapes=asked.record_shapes,
        profile_memory=asked.profile_memory,
        with_stack=asked.with_stack,
        with_flops=asked.with_flops,
        with_modules=asked.with_modules,
    ) as profiler:
        yield profiler
    if asked.output_trace_dir is not None:
        folder = Path(asked.output_trace_dir)
        folder.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(folder / TRACE.format(rank=rank)))
