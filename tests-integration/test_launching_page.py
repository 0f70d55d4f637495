"""What docs/guides/launching.md shows is what the commands print."""

import os
import re
import subprocess
import sys
from pathlib import Path

from repository import ROOT

PAGE = ROOT / "docs" / "guides" / "launching.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


def commands() -> list[tuple[str, str]]:
    """Each command of the page with what it prints."""
    found = []
    for block in BLOCK.findall(PAGE.read_text()):
        for part in block.removeprefix("$ ").split("\n$ "):
            command, _, shown = part.partition("\n")
            found.append((command, shown.rstrip("\n")))
    return found


def test_the_commands_print_what_the_page_shows(tmp_path: Path) -> None:
    """Three dots stand for anything."""
    (tmp_path / "accel").write_text(f'#!/bin/sh\nexec {sys.executable} -m accel "$@"\n')
    (tmp_path / "accel").chmod(0o755)
    (tmp_path / "python").symlink_to(sys.executable)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ACCEL_")}
    environ |= {"PATH": f"{tmp_path}:{Path(sys.executable).parent}:{environ['PATH']}", "ACCEL_HOME": str(tmp_path)}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    assert len(commands()) >= 7
    for command, shown in commands():
        if command.startswith("cat "):
            (tmp_path / command.removeprefix("cat ")).write_text(shown + "\n")
            continue
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        wanted = re.escape(shown).replace(re.escape("..."), ".*")
        assert re.fullmatch(wanted, done.stdout.strip(), flags=re.DOTALL), f"$ {command}\n{done.stdout}"
