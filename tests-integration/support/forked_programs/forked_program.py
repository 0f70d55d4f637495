"""A forked process that becomes a program of Python."""

from __future__ import annotations

import atexit
import builtins
import faulthandler
import fcntl
import importlib
import io
import os
import random
import resource
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any, NoReturn, cast

from accel_testing.import_by_path import same_file

from forked_programs.stub import IGNORED_BY_PYTHON, KEPT, conditions

#: beginnings of variables that Python or torch has read before the fork
READ_BEFORE = ("PYTHON", "LD_", "DYLD_", "TORCH_", "MKL_", "KMP_")
#: beginnings of those that a process can follow afterwards, or that torch reads when it joins a process group
FOLLOWED = ("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "PYTHONFAULTHANDLER", "TORCH_NCCL_")


@dataclass(frozen=True, slots=True)
class Request:
    """The start that a stub asks for.

    Args:
        arguments: Words of the command line, the stub's own path first.
        environ: Environment.
        folder: Working directory.
        umask: Mask of permissions.
        descriptors: Numbers of the open descriptors of the stub.
        ignored: Signals that the stub was started to ignore.
        blocked: Signals that were blocked.
        limits: Limits of resources, by their numbers.
        conditions: Properties of the stub's process that cannot be handed on.
        received: Numbers that the descriptors have in this process, in the same order.
    """

    arguments: Sequence[bytes]
    environ: Mapping[bytes, bytes]
    folder: bytes
    umask: int
    descriptors: Sequence[int]
    ignored: Sequence[int]
    blocked: Sequence[int]
    limits: Mapping[int, tuple[int, int]]
    conditions: Mapping[str, str]
    received: Sequence[int]

    def problems(self, path: Sequence[str]) -> list[str]:
        """List why a fork of this process cannot be the program, with the values in the stub and in the server."""
        found = [
            f"its {name} is {self.conditions.get(name)}, and {value} in the server"
            for name, value in conditions().items()
            if self.conditions.get(name) != value
        ]
        asked = {os.fsdecode(name): os.fsdecode(value) for name, value in self.environ.items()}
        for name in sorted(asked.keys() | os.environ.keys()):
            if (
                name.startswith(READ_BEFORE)
                and not name.startswith(FOLLOWED)
                and asked.get(name) != os.environ.get(name)
            ):
                found.append(f"{name} is {asked.get(name, 'unset')}, and {os.environ.get(name, 'unset')} in the server")
        arguments = [os.fsdecode(word) for word in self.arguments[1:]]
        words = [word for word in arguments[:3] if word != "-u"]
        first = words[0] if words else ""
        if not first or (first[:1] == "-" != first and (first not in ("-m", "-c") or len(words) < 2)):
            found.append(f"its arguments are {arguments}: expected -u or nothing, then -m MODULE, -c CODE or SCRIPT")
        elif first == "-" or os.path.isdir(os.path.join(os.fsdecode(self.folder), first)):
            found.append(f"its script is {first!r}: expected a file, and neither a folder nor the standard input")
        return found + self._other_modules([*_entries(asked.get("PYTHONPATH"), os.fsdecode(self.folder)), *path])

    def _other_modules(self, path: list[str]) -> list[str]:
        """Return the packages that are imported here, and that the program would find elsewhere."""
        found = []
        for name in sorted({name.partition(".")[0] for name in sys.modules if not name.startswith("_")}):
            file = getattr(sys.modules.get(name), "__file__", None)
            if file is None or name in sys.stdlib_module_names:
                continue
            spec = PathFinder.find_spec(name, path)
            # what no folder of the path has may come from a finder of an editable install, which the fork inherits
            if spec is not None and spec.origin != file and not same_file(spec.origin, file):
                found.append(f"it finds {name} in {spec.origin}, and the server has imported {file}")
        return found


def _entries(pythonpath: str | None, folder: str) -> list[str]:
    return [os.path.join(folder, entry) for entry in pythonpath.split(os.pathsep)] if pythonpath else []


def run_program(request: Request, path: Sequence[str]) -> NoReturn:
    """Run the program of a request, in a process that was forked for it, and end the process with its status.

    Modules are not torn down, which would take longest.

    Args:
        request: The start that the stub asks for.
        path: `sys.path` without PYTHONPATH.
    """
    _take_descriptors(request.descriptors, request.received)
    environ = {os.fsdecode(name): os.fsdecode(value) for name, value in request.environ.items()}
    os.environ.clear()
    os.environ.update(environ)
    time.tzset()
    os.chdir(request.folder)
    os.umask(request.umask)
    for number, limit in request.limits.items():
        resource.setrlimit(number, limit)
    sys.executable, *arguments = map(os.fsdecode, request.arguments)
    sys.orig_argv = [sys.executable, *arguments]
    unbuffered = arguments[0] == "-u" or bool(environ.get("PYTHONUNBUFFERED"))
    while arguments[0] == "-u":
        arguments.pop(0)
    _open_standard_streams(unbuffered)
    sys.dont_write_bytecode = bool(environ.get("PYTHONDONTWRITEBYTECODE"))
    sys.path[:] = [*_entries(environ.get("PYTHONPATH"), os.getcwd()), *path]
    importlib.invalidate_caches()
    _renew_random_numbers()
    faulthandler.disable()  # the server may have it of the session
    _take_signals(request)
    if environ.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    os._exit(_end(_status(arguments)))


def _take_descriptors(numbers: Sequence[int], received: Sequence[int]) -> None:
    """Give each received descriptor the number that it had in the stub, and close all others."""
    free = max([2, *numbers, *received]) + 1
    moved = [fcntl.fcntl(number, fcntl.F_DUPFD, free) for number in received]
    os.closerange(0, free)
    for number, source in zip(numbers, moved, strict=True):
        os.dup2(source, number)
    os.closerange(free, os.sysconf("SC_OPEN_MAX") if sys.platform != "linux" else max(moved, default=free) + 1)


def _take_signals(request: Request) -> None:
    """Give signals the dispositions that they had in the stub, then let those in that have come meanwhile."""
    for number in signal.valid_signals() - KEPT - IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_IGN if number in request.ignored else signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if signal.SIGINT not in request.ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, request.blocked)


def _status(arguments: Sequence[str]) -> int | None:
    """Run the script, module or code, and return its status, or None if it was interrupted."""
    try:
        start = _main_module(arguments)
        _import_sitecustomize()
        sys.path.insert(0, _first_entry(arguments))
        start()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:  # noqa: BLE001 - as Python does with what leaves a program
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return None if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _end(status: int | None) -> int:
    """Do what Python does before it ends, and return the exit code, or end by SIGINT if there is no status."""
    threading._shutdown()  # type: ignore[attr-defined] # waits for threads that are no daemons
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with suppress(OSError, ValueError):
                stream.flush()
    if status is None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return 130 if status is None else status & 0xFF


def _open_standard_streams(unbuffered: bool) -> None:
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _standard_stream(number, unbuffered) if _is_open(number) else None
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _standard_stream(number: int, unbuffered: bool) -> io.TextIOWrapper:
    mode = "w" if number else "r"
    binary: Any = open(number, f"{mode}b", buffering=0 if unbuffered and number else -1, closefd=False)  # noqa: SIM115
    stream: Any = io.TextIOWrapper(
        binary,
        encoding="utf-8",
        errors="backslashreplace" if number == 2 else "strict",
        line_buffering=number == 2 or binary.isatty(),
        write_through=unbuffered,
    )
    stream.mode = mode
    return cast(io.TextIOWrapper, stream)


def _renew_random_numbers() -> None:
    """Seed the generators from the system, as all forks would draw the same numbers."""
    random.seed()
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()
    sys.modules["torch"].default_generator.seed()


def _first_entry(arguments: Sequence[str]) -> str:
    if arguments[0] == "-c":
        return ""
    return os.getcwd() if arguments[0] == "-m" else os.path.dirname(os.path.realpath(arguments[0]))


def _main_module(arguments: Sequence[str]) -> Callable[[], object]:
    """Return a function that runs the program as the module `__main__`, which is new and empty."""
    module = ModuleType("__main__")
    module.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = module
    kind, *rest = arguments
    if kind == "-m":
        sys.argv = ["-m", *rest[1:]]
        return lambda: runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined] # as `python -m` does
    if kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        return lambda: exec(compile(rest[0], "<string>", "exec", dont_inherit=True), module.__dict__)
    sys.argv = [kind, *rest]
    file = os.path.abspath(kind)
    if not os.path.exists(file):
        print(f"{sys.executable}: can't open file {file!r}: [Errno 2] No such file or directory", file=sys.stderr)
        raise SystemExit(2)
    loader = SourceFileLoader("__main__", file)
    module.__dict__.update(__file__=file, __loader__=loader, __cached__=None)
    return lambda: exec(compile(loader.get_data(file), file, "exec", dont_inherit=True), module.__dict__)


def _import_sitecustomize() -> None:
    sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
