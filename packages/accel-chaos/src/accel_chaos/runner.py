"""Run a script in a process that `accel chaos` starts, with faults or without."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from unittest.mock import patch

from accel import DataLoaderConfiguration, configuration
from accel_comm import flight_recorder, process_group
from accel_comm.process_group import GroupOptions
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
    folder, undisturbed, launch, seconds, work, kind, name, *rest = arguments
    environ = process_environ()
    # of the launcher, not of the user: checkpoints in memory, say
    of_launcher = [value for variable, value in environ.items() if variable.startswith("ACCEL_") and value[:1] == "/"]
    here, limit = detect(environ), timedelta(seconds=float(seconds))
    attempt = f"{int(launch):03}-{int(environ.get(ATTEMPT, '0')):03}"
    monitor = RunMonitor(Path(folder), Path(undisturbed), attempt, here.rank, here.world_size)
    absolute, defaults = configuration._absolute, DataLoaderConfiguration.__init__.__defaults__ or ()

    def copied(path: str | Path | None) -> str | Path | None:
        found = absolute(path)
        own = found is None or any(Path(found).is_relative_to(folder) for folder in of_launcher)
        return type(found)(inside(Path(work), Path(found))) if work and found is not None and not own else found

    with (
        monitored(monitor),
        # what is here is no line of the script's
        patch.multiple(flight_recorder, OURS=flight_recorder.OURS | {"accel_chaos", "accel_verify"}),
        # the last is `consumption_log`
        patch.multiple(DataLoaderConfiguration.__init__, __defaults__=(*defaults[:-1], Path(folder) / CONSUMED)),
        # a process that is stopped for ever is waited for in vain
        patch.multiple(GroupOptions, limit=property(lambda options: min(options.timeout or limit, limit))),
        patch.multiple(process_group, LATER=timedelta(seconds=10)),
        patch.multiple(configuration, _absolute=copied),
    ):
        run_script(name, rest, module=kind == "module")
        monitor.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
