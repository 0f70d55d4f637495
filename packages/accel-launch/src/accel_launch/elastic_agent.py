"""torch's elastic agent with words of accel: `python -m accel_launch.elastic_agent JSON`."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from accel_launch.verdict import how_ended


def main(about: dict[str, Any]) -> int:
    """Runs the processes of this machine until the job is over; the exit code of the first that failed."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError, RendezvousError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    where = f"{about['host']}:{about['port']}"
    logs = DefaultLogsSpecs(
        log_dir=about["log_dir"],
        redirects=Std.ALL if about["log_dir"] is not None else Std.NONE,
        tee=Std(about["tee"]) if about["log_dir"] is not None else Std.NONE,
    )
    config = LaunchConfig(
        min_nodes=about["machines"],
        max_nodes=about["machines"],
        nproc_per_node=about["processes"],
        run_id="accel",
        rdzv_endpoint=where,
        rdzv_backend="c10d",
        rdzv_configs={
            "is_host": about["serves"],
            "join_timeout": about["join_timeout_s"],
            "read_timeout": about["join_timeout_s"],
        },
        max_restarts=about["max_restarts"],
        monitor_interval=0.1,
        local_addr=about["address"] or None,
        logs_specs=logs,
    )
    # torch's agent ties nobody to its life
    tied = ("-m", "accel_launch.tied", str(os.getpid()), *about["command"])
    try:
        elastic_launch(config, sys.executable)(*tied)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        _say(f"rank {rank} (pid {failure.pid}) {how_ended(failure.exitcode)}; its own message is above")
        return int(failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode)
    except SignalException as error:
        _say(f"the job was ended by {error.sigval.name} from outside")
        return 128 + int(error.sigval)
    except RendezvousConnectionError as error:
        _say(f"the machines cannot meet at {where}, which machine 0 has to serve: {error}")
        return 1
    except RendezvousError as error:
        _say(
            f"{about['machines']} machines have not come together at {where} within {about['join_timeout_s']} s, at the"
            f" start or after one was lost: {type(error).__name__}: {error}; wait longer: --join_timeout"
        )
        return 1
    return 0


def _say(words: str) -> None:
    print(f"accel: {words}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
