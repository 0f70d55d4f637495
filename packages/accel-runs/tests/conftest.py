"""Records to look at."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from accel_track.local.record import RunRecord

HOSTILE = "</script><script>document.title = 'taken over'</script>"


def _record_runs(parent: Path, runs: int, steps: int) -> list[Path]:
    """Runs with a loss, a rate and a metric whose name is code; each with a checkpoint and a restart."""
    folders = [parent / "project" / f"run{number}" for number in range(runs)]
    for number, folder in enumerate(folders):
        record = RunRecord(folder)
        record.add_facts(project="project", run=folder.name, state="finished", started="today")
        for step in range(steps):
            values = {"loss": 1 / (step + 1) + number, "rate": math.nan if step == 1 else 0.1, HOSTILE: math.sin(step)}
            record.log(values, step)
            if step == steps // 2:
                record.add_event("checkpoint", step, {})
        record.add_event("restart", steps - 1, {})
        record.close()
    return folders


@pytest.fixture
def hostile() -> str:
    """The name of a metric that is code."""
    return HOSTILE


@pytest.fixture
def record_runs() -> Callable[[Path, int, int], list[Path]]:
    """Writes a number of runs, with a number of steps, into a folder."""
    return _record_runs
