"""Files that streams are read from, written once for all tests."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

#: in each folder of files
FILES, ROWS = 500, 4


def pytest_configure(config: pytest.Config) -> None:
    """Lets workers find `datasets` imported, which takes each of them a second, and asks for no network."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    config.addinivalue_line("world_preload", "datasets")


def written(folder: Path, kind: str, files: int = FILES, rows: int = ROWS) -> str:
    """A folder of files of consecutive numbers called `id`, so many rows each."""
    import pyarrow
    import pyarrow.parquet

    folder.mkdir(exist_ok=True)
    for file in range(files):
        numbers = range(file * rows, (file + 1) * rows)
        if kind == "json":
            lines = "".join(json.dumps({"id": number}) + "\n" for number in numbers)
            (folder / f"{file:05d}.jsonl").write_text(lines)
        else:
            table: Any = pyarrow.table({"id": list(numbers)})
            pyarrow.parquet.write_table(table, folder / f"{file:05d}.parquet")
    return str(folder)


@pytest.fixture(scope="session")
def json_files(tmp_path_factory: pytest.TempPathFactory) -> str:
    """500 files of JSON lines."""
    return written(tmp_path_factory.mktemp("streams") / "json", "json")


@pytest.fixture(scope="session")
def parquet_files(tmp_path_factory: pytest.TempPathFactory) -> str:
    """500 files of Parquet."""
    return written(tmp_path_factory.mktemp("streams") / "parquet", "parquet")
