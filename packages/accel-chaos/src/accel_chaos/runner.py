"""Run a script in a process that `accel chaos` starts, with faults or without."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import accel_comm.process_group
from accel import configuration, preparation
from accel_comm.process_group import GroupOptions
from accel_data import ConsumptionLog
from accel_state.environ import ATTEMPT, process_environ
from accel_state.environments import detect
from accel_verify.runner import run_script

from accel_chaos.monitor import RunMonitor, monitored
from accel_chaos.work_folder import inside

#: the consumption log of a run
CONSUMED = "consumption.jsonl"


def main(arguments: Sequence[str]) -> int:
    """Run a script as `accel chaos` asks for it.

    Args:
        arguments: The words FOLDER UNDISTURBED LAUNCH LIMIT WORK KIND SCRIPT [ARGUMENTS].

    Returns:
        The exit code: 0.
    """
    folder, undisturbed, launch, limit, work, kind, name, *rest = arguments
    environ = process_environ()
    here = detect(environ)
    attempt = f"{int(launch):03}-{int(environ.get(ATTEMPT, '0')):03}"
    monitor = RunMonitor(Path(folder), Path(undisturbed) if undisturbed else None, attempt, here.rank, here.world_size)
    changed = in_copies(Path(work)) if work else ExitStack()
    with monitored(monitor), logged(Path(folder)), impatient(timedelta(seconds=float(limit))), changed:
        run_script(name, rest, module=kind == "module")
        monitor.finish()
    return 0


@contextmanager
def logged(folder: Path) -> Iterator[None]:
    """Let each loader write a consumption log inside of the block, unless the script has asked for a log."""
    prepare, numbers = preparation.prepare_data_loader, count()

    def logging(*arguments: Any, **named: Any) -> Any:
        if named.get("consumption_log") is None:
            named["consumption_log"] = ConsumptionLog(folder / CONSUMED, str(next(numbers)))
        return prepare(*arguments, **named)

    with patch.object(preparation, "prepare_data_loader", logging):
        yield


@contextmanager
def impatient(limit: timedelta) -> Iterator[None]:
    """Let no wait for another process last longer than a limit inside of the block, so that a frozen process is met."""
    asked: Callable[[GroupOptions], timedelta] = GroupOptions.limit.fget  # type: ignore[attr-defined] # a property

    def least(options: GroupOptions) -> timedelta:
        return min(asked(options), limit)

    with (
        patch.object(GroupOptions, "limit", property(least)),
        patch.object(accel_comm.process_group, "LATER", timedelta(seconds=10)),
    ):
        yield


@contextmanager
def in_copies(work: Path) -> Iterator[None]:
    """Put the folders of projects into the working folder of the run inside of the block."""
    absolute = configuration._absolute

    def moved(folder: str | Path | None) -> str | Path | None:
        whole = absolute(folder)
        return None if whole is None else type(whole)(inside(work, Path(whole)))

    with patch.object(configuration, "_absolute", moved):
        yield


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
