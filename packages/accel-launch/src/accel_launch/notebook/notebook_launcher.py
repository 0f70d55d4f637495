"""Run a function of a notebook or a script on several processes, each a fresh interpreter."""

import pickle
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from accel_comm.errors import AccelError
from accel_state.environ import changed, process_environ
from accel_state.errors import CannotRun

from accel_launch.cli.options import BY_NAME, LaunchSettings
from accel_launch.cli.suggest import did_you_mean
from accel_launch.job.job import Job, this_host
from accel_launch.job.job_runner import run_job
from accel_launch.job.plan import count_processes, plan_one
from accel_launch.notebook.notebook_worker import FUNCTION, RESULT, worker_command
from accel_launch.report.failure_report import explain
from accel_launch.supervise.signals import HandledSignals

# What Accelerate's launcher takes as well, and the values with which it asks for nothing.
REFERENCE_DEFAULTS: dict[str, tuple[object, ...]] = {
    "use_port": ("29500", 29500, None, "0", 0),
    "master_addr": ("127.0.0.1",),
    "node_rank": (0,),
    "num_nodes": (1,),
    "rdzv_backend": ("static", "c10d"),
    "rdzv_endpoint": ("",),
    "rdzv_conf": (None, {}),
    "rdzv_id": ("none",),
    "max_restarts": (0,),
    "monitor_interval": (0.1,),
    "log_line_prefix_template": (None,),
}


class WorkerFailed(AccelError, RuntimeError):
    """A failure of a process that a notebook launcher started. The message has its traceback."""


def notebook_launcher(
    function: Callable[..., Any],
    args: tuple[Any, ...] | list[Any] = (),
    num_processes: int | None = None,
    mixed_precision: str = "no",
    **reference: object,
) -> list[Any]:
    """Call a function once per process, and return the results in rank order.

    A single process is this process. Several are fresh interpreters that end before the call returns.

    Args:
        function: Function to call. It is sent by cloudpickle.
        args: Its arguments.
        num_processes: Number of processes. Default: one for each accelerator, or one.
        mixed_precision: Precision of an Accelerator that names none.
        reference: Other keywords of Accelerate's launcher, which are taken with their defaults only.

    Raises:
        CannotRun: A keyword is wrong, or an Accelerator exists already. Nothing was started.
        WorkerFailed: A process has failed. The message has the traceback of the first.
    """
    return _launch(
        "notebook_launcher",
        function,
        args,
        {"num_processes": num_processes, "mixed_precision": mixed_precision},
        _unsupported(reference),
    )


def debug_launcher(
    function: Callable[..., Any], args: tuple[Any, ...] | list[Any] = (), num_processes: int = 2
) -> list[Any]:
    """Call a function on several processes on the CPU, and return the results in rank order.

    Args:
        function: Function to call. It is sent by cloudpickle.
        args: Its arguments.
        num_processes: Number of processes.

    Raises:
        CannotRun: An argument is wrong. Nothing was started.
        WorkerFailed: A process has failed. The message has the traceback of the first.
    """
    return _launch("debug_launcher", function, args, {"cpu": True, "num_processes": num_processes}, [], beside=True)


def _unsupported(reference: Mapping[str, object]) -> list[str]:
    problems = []
    for name, value in reference.items():
        if name not in REFERENCE_DEFAULTS:
            known = [*REFERENCE_DEFAULTS, "num_processes", "mixed_precision"]
            problems.append(f"there is no keyword {name!r}{did_you_mean(name, known)}")
        elif value not in REFERENCE_DEFAULTS[name]:
            problems.append(
                f"{name}={value!r} is not supported: the processes run on this machine, meet at a free port and are"
                f" started once; leave {name} out"
            )
    return problems


def _launch(
    caller: str,
    function: Callable[..., Any],
    args: tuple[Any, ...] | list[Any],
    values: Mapping[str, object],
    problems: list[str],
    beside: bool = False,
) -> list[Any]:
    flags = {}
    for name, value in values.items():
        if value is not None:
            try:
                flags[name] = BY_NAME[name].read(value)
            except click.BadParameter as error:
                problems.append(f"{name}={value!r}: {error.message}")
    if not callable(function):
        problems.append(f"expected a function, found {function!r}; name it without calling it: {caller}(train, args)")
    if not isinstance(args, tuple | list):
        # each item of a text or a tensor would become an argument
        kind = type(args).__name__
        problems.append(
            f"args: expected a tuple or a list of the function's arguments, found a {kind}; for one argument write (x,)"
        )
    if problems:
        raise CannotRun(caller, problems)
    environ = process_environ()
    settings = LaunchSettings().with_flags(**flags)
    host = this_host(environ)
    count = count_processes(settings, environ, host)
    if count == 1:
        wanted = plan_one(settings, (), environ).environ
        with changed({name: wanted.get(name) for name in {*wanted, *environ} if wanted.get(name) != environ.get(name)}):
            return [function(*args)]
    from accel_state import is_initialized

    if is_initialized() and not beside:  # tests call debug_launcher, and have an Accelerator of their own
        raise CannotRun(
            caller,
            [
                "an Accelerator exists already in this process; create it inside the function that is launched,"
                " then restart the kernel and run again"
            ],
        )
    if find_spec("cloudpickle") is None:
        raise CannotRun(
            caller,
            ["the function travels to its processes by cloudpickle, which is missing: pip install cloudpickle"],
        )
    import cloudpickle  # type: ignore[import-untyped] # it has no types

    with TemporaryDirectory(prefix="accel-notebook-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / FUNCTION).write_bytes(cloudpickle.dumps((function, tuple(args))))
        result = run_job(Job(settings, worker_command(folder), environ, host, count), HandledSignals(()), bound=False)
        if result.first is not None:
            raise WorkerFailed(explain(result) or "a process has failed")
        return [_result(folder / RESULT.format(rank)) for rank in range(count)]


def _result(path: Path) -> Any:
    if not path.exists():
        return None  # The function left through sys.exit(0).
    with path.open("rb") as file:
        return pickle.load(file)  # a process of ours wrote it, into a folder that only this user can enter
