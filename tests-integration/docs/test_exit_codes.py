"""docs/reference/exit-codes.md says what commands end with."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from accel_launch.cli.program import COMMANDS, REFUSED
from accel_state.exit_codes import HUNG, STOPPED
from accel_testing import stretched
from repository import ROOT

TEXT = (ROOT / "docs" / "reference" / "exit-codes.md").read_text()


def test_the_table_has_the_codes_of_the_code() -> None:
    codes = {
        int(code) for code in re.findall(r"^\| (\d+) \| [^|]+ \| [^|]+ \|$", TEXT, re.MULTILINE) if int(code) < 128
    }
    assert codes == {0, REFUSED, HUNG, STOPPED}
    for code in (HUNG, STOPPED):
        assert f"## Exit code {code}\n" in TEXT


def test_the_signals_have_their_numbers() -> None:
    rows = re.findall(r"^\| (\d+) \| (SIG\w+) \|", TEXT, re.MULTILINE)
    assert len(rows) >= 5
    for code, name in rows:
        assert int(code) == 128 + signal.Signals[name]


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("pass", 0),
        ("raise SystemExit(9)", 9),
        ("import os; os.kill(os.getpid(), 9)", 137),
        (None, REFUSED),
    ],
)
def test_a_launch_ends_with_the_code_of_the_page(script: str | None, code: int, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    if script is not None:
        path.write_text(script)
    command = [sys.executable, "-m", "accel", "launch", "--cpu", "-n", "2", str(path)]
    assert subprocess.run(command, capture_output=True, timeout=stretched(60), check=False).returncode == code


def test_every_command_that_the_page_names_exists() -> None:
    named = set(re.findall(r"^\| `accel ([\w-]+)[^|]*\| [^|]+ \| [^|]+ \|$", TEXT, re.MULTILINE))
    assert named
    assert named <= set(COMMANDS)
