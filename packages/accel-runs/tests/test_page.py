"""The page that `accel runs plot` writes."""

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from accel_runs.command import COMMAND
from click.testing import CliRunner, Result

pytest.importorskip("bokeh", reason="environments without what draws pages")


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(COMMAND, ["plot", *map(str, arguments)])


class Reader(HTMLParser):
    """What a screen reader reads: headings and tables; and scripts, and what pages load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.headings: list[str] = []
        self.scripts: list[str] = []
        self.loads: list[str] = []
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open.append(tag)
        self.loads += [str(value) for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            continue

    def handle_data(self, data: str) -> None:
        tag = self._open[-1] if self._open else ""
        {"td": self.cells, "h2": self.headings, "script": self.scripts}.get(tag, []).append(data)


def test_a_page_has_all_in_it_and_a_table_for_each_picture(tmp_path: Path, record_runs: Any, hostile: str) -> None:
    """S136: and a name is no code."""
    record_runs(tmp_path, 2, 50)
    page = tmp_path / "page.html"
    assert run("run0", "run1", "--dir", tmp_path, "-o", page).exit_code == 0
    read = Reader(page.read_text())
    assert read.headings == [hostile, "loss", "rate"]
    assert read.loads == []
    assert not [script for script in read.scripts if "taken over" in script and "&lt;" not in script]
    assert "49" in read.cells
    assert f"{1 / 50 + 1:.6g}" in read.cells
    assert read.cells[-6:] == ["project/run1", "restart", "49", "project/run1", "checkpoint", "25"]


def test_metrics_are_chosen_or_refused_by_name(tmp_path: Path, record_runs: Any) -> None:
    record_runs(tmp_path, 1, 5)
    page = tmp_path / "page.html"
    assert run("last", "-m", "loss", "--dir", tmp_path, "-o", page).exit_code == 0
    assert Reader(page.read_text()).headings == ["loss"]
    assert "no metric 'los'; there are: " in str(run("last", "-m", "los", "--dir", tmp_path, "-o", page).exception)
    refused = run("last", "--dir", tmp_path, "-o", tmp_path / "none" / "page.html")
    assert "could not be written" in str(refused.exception)


def test_without_bokeh_the_page_is_refused_in_words(
    tmp_path: Path, record_runs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_runs(tmp_path, 1, 2)
    monkeypatch.setattr("accel_runs.command.find_spec", lambda name: None)
    assert "pip install bokeh" in str(run("last", "--dir", tmp_path, "-o", tmp_path / "p").exception)
