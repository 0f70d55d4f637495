"""Runs the blocks of a page that show commands and what they print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from accel_testing import stretched

BLOCK = re.compile(r"^```console\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
#: what the launcher says of a failure in a process that it has not started itself
FORKED = re.compile(r"in process \d+ of it: ")


def commands(text: str) -> list[tuple[str, str]]:
    """Each command of a page with what it prints."""
    found = []
    for block in BLOCK.findall(text):
        for part in block.removeprefix("$ ").split("\n$ "):
            command, _, shown = part.partition("\n")
            found.append((command, shown.rstrip("\n")))
    return found


def run(text: str, folder: Path, python: str = sys.executable) -> int:
    """Runs the commands in a folder and counts them: `cat` writes the file that it shows; three dots are anything.

    `python` is Python or `forking_python`, whose programs have other process ids than those that a launcher starts.
    """
    for name, starts in (("accel", f"{python} -m accel"), ("python", python)):
        (folder / name).write_text(f'#!/bin/sh\nexec {starts} "$@"\n')
        (folder / name).chmod(0o755)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ACCEL_")}
    environ |= {"PATH": f"{folder}:{Path(sys.executable).parent}:{environ['PATH']}", "ACCEL_HOME": str(folder)}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    for command, shown in commands(text):
        if command.startswith("cat "):
            (folder / command.removeprefix("cat ")).write_text(shown + "\n")
            continue
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=stretched(120),
            check=False,
        )
        wanted = re.escape(shown).replace(re.escape("..."), ".*")
        printed = FORKED.sub("", done.stdout) if python != sys.executable else done.stdout
        if not re.fullmatch(wanted, printed.strip(), flags=re.DOTALL):
            raise AssertionError(f"$ {command}\n{done.stdout}")
    return len(commands(text))
