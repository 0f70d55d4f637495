"""Entry points are those of `importlib.metadata`, read once."""

import importlib.metadata
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from accel_state.entry_points import entry_points_of

GROUP = "accel.kites"


def install(folder: Path, name: str, text: str) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(text)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One item for each time that the metadata of all distributions was read."""
    done: list[int] = []
    read = importlib.metadata.entry_points

    def counted() -> Any:
        done.append(1)
        return read()

    monkeypatch.setattr("importlib.metadata.entry_points", counted)
    return done


def names() -> list[str]:
    return [point.name for point in entry_points_of(GROUP)]


def test_metadata_is_read_once_and_again_after_an_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: list[int]
) -> None:
    install(tmp_path, "red", f"[{GROUP}]\nred = kites:Red\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [names() for _ in range(5)] == [["red"]] * 5
    assert len(reads) == 1
    install(tmp_path, "blue", f"[{GROUP}]\nblue = kites:Blue\n")
    assert [sorted(names()) for _ in range(5)] == [["blue", "red"]] * 5
    assert len(reads) == 2


def test_a_folder_without_metadata_does_not_have_it_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: list[int]
) -> None:
    names()
    before = len(reads)
    for number in range(3):
        (tmp_path / str(number)).mkdir()
        monkeypatch.setattr(sys, "path", [str(tmp_path / str(number)), str(tmp_path / "absent"), *sys.path])
        assert names() == []
    assert len(reads) == before


def test_an_archive_and_the_current_folder_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "wheel.zip", "w") as archive:
        archive.writestr("green-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: green\nVersion: 1.0\n")
        archive.writestr("green-1.0.dist-info/entry_points.txt", f"[{GROUP}]\ngreen = kites:Green\n")
    here = tmp_path / "here"
    install(here, "red", f"[{GROUP}]\nred = kites:Red\n")
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path / "wheel.zip"), *sys.path])
    assert names() == ["red", "green"]


def test_every_group_is_that_of_importlib() -> None:
    points = importlib.metadata.entry_points()
    for group in points.groups:
        assert sorted(entry_points_of(group)) == sorted(points.select(group=group))
