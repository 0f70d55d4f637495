"""What pages show of commands is what the commands print."""

from pathlib import Path

import console_blocks
import pytest
from repository import ROOT


@pytest.mark.timeout(900)  # a dozen launches, on a machine that may have other work
@pytest.mark.parametrize(("page", "count"), [("launching.md", 7), ("troubleshooting.md", 8), ("rehearse.md", 2)])
def test_the_commands_print_what_the_page_shows(page: str, count: int, tmp_path: Path, forking_python: str) -> None:
    text = (ROOT / "docs" / "guides" / page).read_text()
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    assert console_blocks.run(text, tmp_path, forking_python) >= count
