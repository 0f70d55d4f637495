"""Run a script in a process that `accel chaos` starts, with faults or without."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from unittest.mock import patch

from accel import DataLoaderConfiguration, configuration
from accel_comm import flight_recorder, process_group, store_connection
from accel_comm.process_group import GroupOptions
from accel_state import store_exchange
from accel_state.environ import ATTEMPT, MEMORY_CHECKPOINTS, process_environ
from accel_state.environments import detect
from accel_verify.runner import run_script

from accel_chaos.faults import Fault
from accel_chaos.injection import PLAN, Injector
from accel_chaos.monitor import RunMonitor, monitored
from accel_chaos.work_folder import inside

#: the consumption log of a run
CONSUMED = "consumption.jsonl"


def main(run: str, launch: str) -> None:
    """Run a script as the plan of a run asks for it.

    Args:
        run: Folder of the run.
        launch: Number of the launch.
    """
    folder = Path(run)
    environ = process_environ()
    planned, until, script, words, module = json.loads((folder / PLAN).read_text())
    faults = [Fault(**fault) for fault in planned]
    here = detect(environ)
    attempt = f"{launch:>03}-{environ[ATTEMPT]:>03}"
    monitor = RunMonitor(Injector(folder, attempt, here.rank, here.world_size, faults, until))
    # for threads too, which outlive the script
    store_exchange.SILENT_S = store_connection.ANSWER_S = 10
    absolute = configuration._absolute
    kept = [folder / "work", Path(environ.get(MEMORY_CHECKPOINTS, folder))]

    def copied(path: str | Path | None) -> str | Path | None:
        found = absolute(path)
        return found and type(found)(inside(kept, Path(found)))

    with (
        # what is here is no line of the script's
        patch.multiple(flight_recorder, OURS=flight_recorder.OURS | {"accel_chaos", "accel_verify"}),
        # the last is `consumption_log`
        patch.multiple(
            DataLoaderConfiguration.__init__,
            __defaults__=(*(DataLoaderConfiguration.__init__.__defaults__ or ())[:-1], folder / CONSUMED),
        ),
        # the longest wait of a process for another: one that is stopped for ever is waited for in vain
        patch.multiple(GroupOptions, limit=timedelta(seconds=20)),
        patch.multiple(process_group, LATER=timedelta(seconds=5)),
        patch.multiple(configuration, _absolute=copied),
    ):
        with monitored(monitor):
            run_script(script, words, module=module)
        monitor.finish()


if __name__ == "__main__":
    main(*sys.argv[1:])
