from __future__ import annotations

import sys
from pathlib import Path

import pytest
from accel_testing.import_by_path import ensure_module


@pytest.fixture(autouse=True)
def same_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "modules", sys.modules.copy())


def test_a_file_outside_the_path_becomes_a_module_once(tmp_path: Path) -> None:
    file = tmp_path / "far_away.py"
    file.write_text("seen = []")
    ensure_module("somewhere.far_away", str(file))
    first = sys.modules["somewhere.far_away"]
    ensure_module("somewhere.far_away", str(file))
    assert sys.modules["somewhere.far_away"] is first


def test_the_file_wins_over_another_module_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "on_path").mkdir()
    (tmp_path / "on_path" / "test_twin.py").write_text("which = 'the other'")
    (tmp_path / "test_twin.py").write_text("which = 'mine'")
    monkeypatch.syspath_prepend(tmp_path / "on_path")
    ensure_module("test_twin", str(tmp_path / "test_twin.py"))
    assert vars(sys.modules["test_twin"])["which"] == "mine"


def test_a_module_whose_execution_fails_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")
    with pytest.raises(ZeroDivisionError):
        ensure_module("broken", str(tmp_path / "broken.py"))
    assert "broken" not in sys.modules


def test_a_module_that_can_be_imported_is_imported() -> None:
    import colorsys

    del sys.modules["colorsys"]
    ensure_module("colorsys", str(colorsys.__file__))
    assert sys.modules["colorsys"] is not colorsys
    assert sys.modules["colorsys"].__name__ == "colorsys"
