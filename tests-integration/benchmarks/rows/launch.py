"""The command line beside bare interpreters: a help page, an import, one process, and two with torch or without."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter

from benchmarks.row import Lineup, Repetition, Row, Skipped

ACCEL = (sys.executable, "-m", "accel_launch")
ELASTIC = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
ACCELERATE = (sys.executable, "-m", "accelerate.commands.accelerate_cli")
#: what a bare process may take more: for a launcher, and for an import of the library
ALLOWED_S, IMPORT_S = 0.1, 0.03
#: processor seconds that the first `Accelerator` of a rank may take, once all that it imports is there
FIRST_S = 0.025
#: two processes, as a shell script starts them
SIDE_BY_SIDE = "{python} {script} & {python} {script} & wait"
SCRIPTS = {
    "nothing.py": "",
    "imports.py": "import torch\n",
    "facade.py": "import accel\n",
    "first_of_accel.py": """\
from time import process_time
import torch, accel.accelerator, accel_amp.precisions.no, accel_parallel.strategies.single
import accel_state.devices.cpu, accel_comm.transports.single
began = process_time()
accel.accelerator.Accelerator(cpu=True)
print(process_time() - began)
""",
    "first_of_accelerate.py": """\
from time import process_time
import torch, accelerate
began = process_time()
accelerate.Accelerator(cpu=True)
print(process_time() - began)
""",
    "argparse_only.py": "import argparse\nargparse.ArgumentParser().parse_args()\n",
}


class Folder:
    """The scripts, in a folder that goes with the last function that starts one."""

    def __init__(self) -> None:
        self._held = tempfile.TemporaryDirectory(prefix="accel-bench-")
        weakref.finalize(self, self._held.cleanup)
        for name, text in SCRIPTS.items():
            (self / name).write_text(text)

    def __truediv__(self, name: str) -> Path:
        return Path(self._held.name) / name


def _environ() -> Mapping[str, str]:
    """That of a shell: no ranks, no settings, no threads chosen by this harness, and no config file of the user."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ACCEL", "MASTER_", "OMP_"))}
    return {**kept, "ACCEL_HOME": "/nonexistent", "HF_HOME": "/nonexistent", "CUDA_VISIBLE_DEVICES": ""}


def _seconds(command: Sequence[str], folder: Folder, *, plus_s: float = 0.0) -> float:
    """From the start of a process to its end; it must end well."""
    began = perf_counter()
    subprocess.run(command, check=True, env=_environ(), cwd=folder / ".", stdin=subprocess.DEVNULL, capture_output=True)
    return perf_counter() - began + plus_s


def _started(folder: Folder, *command: str, plus_s: float = 0.0) -> Repetition:
    return partial(_seconds, command, folder, plus_s=plus_s)


def _printed(folder: Folder, script: str) -> float:
    """The seconds that a script prints."""
    command = (sys.executable, script)
    return float(subprocess.check_output(command, env=_environ(), cwd=folder / ".", stdin=subprocess.DEVNULL))


def _with_accelerate(folder: Folder) -> Folder:
    if find_spec("accelerate") is None:
        raise Skipped("pip install accelerate")
    return folder


def _accelerate(folder: Folder, *words: str) -> Repetition:
    return _started(_with_accelerate(folder), *ACCELERATE, *words)


def _help(*command: str) -> Lineup:
    folder = Folder()
    return Lineup.of(
        {
            "raw": lambda: _started(folder, sys.executable, "argparse_only.py", "--help"),
            "accel": lambda: _started(folder, *ACCEL, *command, "--help"),
            "accelerate": lambda: _accelerate(folder, *command, "--help"),
        }
    )


def _one() -> Lineup:
    folder = Folder()
    script = "nothing.py"
    return Lineup.of(
        {
            "raw": lambda: _started(folder, sys.executable, script),
            "accel": lambda: _started(folder, *ACCEL, "launch", "--cpu", "-n", "1", script),
            "accelerate": lambda: _accelerate(folder, "launch", "--cpu", "--num_processes", "1", script),
            "100 ms more": lambda: _started(folder, sys.executable, script, plus_s=ALLOWED_S),
        }
    )


def _import() -> Lineup:
    folder = Folder()
    return Lineup.of(
        {
            "raw": lambda: _started(folder, sys.executable, "nothing.py"),
            "accel": lambda: _started(folder, sys.executable, "facade.py"),
            "30 ms more": lambda: _started(folder, sys.executable, "nothing.py", plus_s=IMPORT_S),
        }
    )


def _first() -> Lineup:
    folder = Folder()
    return Lineup.of(
        {
            "25 ms": lambda: lambda: FIRST_S,
            "accel": lambda: partial(_printed, folder, "first_of_accel.py"),
            "accelerate": lambda: partial(_printed, _with_accelerate(folder), "first_of_accelerate.py"),
        }
    )


def _two(script: str) -> Lineup:
    folder = Folder()
    bare = SIDE_BY_SIDE.format(python=sys.executable, script=script)
    two = ("--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no")
    return Lineup.of(
        {
            "raw": lambda: _started(folder, "sh", "-c", bare),
            "accel": lambda: _started(folder, *ACCEL, "launch", "--cpu", "-n", "2", script),
            "accelerate": lambda: _accelerate(folder, "launch", "--cpu", *two, script),
            "torchrun": lambda: _started(folder, *ELASTIC, script),
        }
    )


_two_of_nothing, _two_of_torch = partial(_two, "nothing.py"), partial(_two, "imports.py")

ROWS = (
    Row("launch, accel --help", _help, 3.0, least=6, most=15),
    Row("launch, accel launch --help", partial(_help, "launch"), 3.0, least=6, most=15),
    Row("launch, one process of an empty script", _one, 1.0, against="100 ms more", least=6, most=15),
    Row("launch, import accel", _import, 1.0, against="30 ms more", least=6, most=15),
    Row("launch, processor of the first Accelerator", _first, 1.0, least=6, most=15),
    Row(
        "launch, two processes of an empty script",
        partial(_two, "nothing.py"),
        0.7,
        against="torchrun",
        least=3,
        most=5,
    ),
    Row("launch, two processes that import torch", partial(_two, "imports.py"), 1.05, least=5, most=9, warm_up=1),
)
