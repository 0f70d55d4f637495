"""torch's elastic agent with words of accel: `python -m accel_launch.elastic_agent JSON`."""

from __future__ import annotations

import json
import logging
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from accel_launch.verdict import how_ended

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing import LogsSpecs

#: the exit code where no process was started
NOTHING_STARTED = 2
#: what torch prints of its C++ code
_CPP_LEVEL = "TORCH_CPP_LOG_LEVEL"


def main(about: dict[str, Any]) -> int:
    """Runs the processes of this machine until the job is over; the exit code of the first that failed."""
    _import_quietly()
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError, RendezvousError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    where = f"{about['host']}:{about['port']}"
    starts: list[int] = []
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
        logs_specs=_logs(about, starts),
    )
    # torch's agent ties nobody to its life
    # with -P nothing in the working directory is taken for a module of Python's own, and the command has it as ever
    tied = ("-P", "-m", "accel_launch.tied", str(os.getpid()), *about["command"])
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
        if starts:
            _say(
                f"the job was ended here, since machine 0 is gone, which serves {where} to all: see what its launcher"
                " has said there"
            )
            return 1
        if about["serves"] and not about["told"]:
            # another launcher of this machine has come sooner, and serves
            return main({**about, "serves": False})
        _say(f"the machines cannot meet at {where}, which machine 0 has to serve: {error.__cause__ or error}")
        return NOTHING_STARTED
    except RendezvousError as error:
        _say(
            f"{about['machines']} machines have not come together at {where} within {about['join_timeout_s']} s, at the"
            f" start or after one was lost ({str(error) or type(error).__name__}); wait longer: --join_timeout"
        )
        return 1 if starts else NOTHING_STARTED
    return 0


def _import_quietly() -> None:
    """Keeps torch in this process from stacks and warnings where the other end of a connection is gone.

    The environment is as before then: it is that of the processes too.
    """
    before = os.environ.get(_CPP_LEVEL)
    os.environ.setdefault(_CPP_LEVEL, "FATAL")
    import_module("torch.distributed")  # reads it once
    if before is None:
        del os.environ[_CPP_LEVEL]
    if "LOGLEVEL" not in os.environ:
        logging.disable(logging.WARNING)


def _logs(about: dict[str, Any], starts: list[int]) -> LogsSpecs:
    """Where what processes print goes; each time that this is asked, they start, and their number is noted."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest, LogsSpecs, Std

    kept = about["log_dir"] is not None
    usual = DefaultLogsSpecs(
        log_dir=about["log_dir"],
        redirects=Std.ALL if kept else Std.NONE,
        tee=Std(about["tee"]) if kept else Std.NONE,
    )

    class _Noting(LogsSpecs):
        def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
            starts.append(len(envs))
            return usual.reify(envs)

        @property
        def root_log_dir(self) -> str:
            return usual.root_log_dir

    return _Noting()


def _say(words: str) -> None:
    print(f"accel: {words}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
