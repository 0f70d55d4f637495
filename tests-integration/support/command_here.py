"""The command `accel` in the process of a test: its words, its exit code and its files, and no job."""

import importlib
import io
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from subprocess import CompletedProcess
from typing import Never
from unittest import mock

import pytest

Run = Callable[..., "CompletedProcess[str]"]


def command_here(folder: Path, silent: Mapping[str, str], capture: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs `accel` in this process and gives its exit code and output.

    It works in a folder, and with an environment of its own. A command that starts the processes of a job fails the
    test, since a single one would take the place of pytest.

    Args:
        folder: Working directory of the command; modules of it are forgotten after each command.
        silent: Environment of the command.
        capture: The fixture `capfd`, since the launcher and the programs that it calls write to descriptors.
    """
    from accel_launch.cli.program import main

    def run(*arguments: str, input: str = "", environ: Mapping[str, str] | None = None) -> "CompletedProcess[str]":
        before = set(sys.modules)
        importlib.invalidate_caches()  # a file may be as old as the last look at its folder
        capture.readouterr()
        with (
            pytest.MonkeyPatch.context() as patch,
            mock.patch.dict(os.environ, {**silent, **(environ or {})}, clear=True),
        ):
            patch.chdir(folder)
            patch.setattr(sys, "stdin", io.StringIO(input))
            patch.setattr(sys, "path", [str(folder), *sys.path])
            patch.setattr(os, "execvpe", _refuse)
            patch.setattr("accel_launch.cli.commands.launch.run_to_end", _refuse)
            try:
                code: object = main(arguments)
            except SystemExit as end:  # of a completion
                code = end.code
        out, err = capture.readouterr()
        for name in set(sys.modules) - before:
            if Path(getattr(sys.modules[name], "__file__", None) or os.devnull).is_relative_to(folder):
                del sys.modules[name]
        assert isinstance(code, int)
        return CompletedProcess(arguments, code, out, err)

    return run


def _refuse(*_: object, **__: object) -> Never:
    pytest.fail("this command starts processes: the fixture accel_program runs it as a program of its own")
