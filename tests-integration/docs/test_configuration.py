"""docs/reference/configuration.md has the options as they are declared, and its file is one that a launch reads."""

import re
import subprocess
import sys
from pathlib import Path

import option_table
import pytest
from accel_launch.config.option_entries import ENTRIES
from accel_testing import stretched

TEXT = option_table.PAGE.read_text()


def test_the_table_is_that_of_the_options() -> None:
    found = option_table.PLACE.search(TEXT)
    assert found is not None
    assert found[0] == option_table.table(), "python tests-integration/tools/option_table.py writes it anew"


@pytest.mark.parametrize("option", sorted(ENTRIES))
def test_the_names_inside_an_option_are_those_that_a_launch_takes(option: str) -> None:
    section = TEXT.split(f"## The names in {option}\n")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]*`) \|", section, re.MULTILINE)
    listed = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(listed) == sorted(ENTRIES[option])


def test_a_launch_takes_the_file_as_it_stands(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    (tmp_path / "this.yaml").write_text(text)
    command = [sys.executable, "-m", "accel", "config", "show", "--origin", "--config_file", "this.yaml"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=stretched(60), check=False)
    assert shown.returncode == 0, shown.stderr
    for key in re.findall(r"^(\w+):", text, re.MULTILINE):
        assert re.search(rf"^{key}: .*# config file", shown.stdout, re.MULTILINE), key
