"""The distributions under docs/examples that bring a class by an entry point, found as if they were installed."""

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from repository import ROOT


@pytest.fixture
def installed_example(tmp_path: Path) -> Callable[[str], list[str]]:
    """The folders that make an example of this name found on a path, with metadata of its entry points."""

    def install(name: str) -> list[str]:
        folder = ROOT / "docs" / "examples" / name
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        metadata = tmp_path / f"{name}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 1.0\n")
        lines = []
        for group, entries in project["entry-points"].items():
            lines += [f"[{group}]", *(f"{entry} = {target}" for entry, target in entries.items())]
        (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
        return [str(tmp_path), str(folder)]

    return install
