"""The facts of a run: its command, machine, versions, and the commit of its code."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from accel_state import detect
from accel_state.environ import ATTEMPT, process_environ

#: the packages whose versions are noted if they are installed
PACKAGES = ("accel", "torch", "numpy", "transformers", "datasets")


def run_facts() -> dict[str, Any]:
    """Return the facts of the run of this process."""
    environ = process_environ()
    return {
        "command": sys.orig_argv,
        "folder": os.getcwd(),
        "host": platform.node(),
        "process": os.getpid(),
        "world": detect(environ).world_size,
        "attempt": int(environ.get(ATTEMPT, "0")),
        "versions": {"python": platform.python_version()} | versions(),
        "git": commit(Path.cwd()),
    }


def versions() -> dict[str, str]:
    """Return the versions of those of `PACKAGES` that are installed."""
    found = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def commit(folder: Path) -> dict[str, Any] | None:
    """Return the commit of a folder, and whether tracked files differ from it, or None outside of git."""
    command = ["git", "-C", str(folder), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    head, _, changed = done.stdout.strip().partition("-")
    return {"commit": head, "changed": bool(changed)} if head else None
