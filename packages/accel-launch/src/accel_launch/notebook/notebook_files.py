"""The files by which a notebook and its processes exchange a function, its results and its failures."""

import json
import os
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def function_file(folder: Path) -> Path:
    """Where the pickled function and its arguments lie."""
    return folder / "function.pickle"


def path_file(folder: Path) -> Path:
    """Where the notebook's module search path lies."""
    return folder / "sys_path.json"


def result_file(folder: Path, rank: int) -> Path:
    """Where a rank leaves what the function returned."""
    return folder / f"result-{rank}.pickle"


def failure_file(folder: Path, rank: int) -> Path:
    """Where a rank leaves its traceback."""
    return folder / f"failure-{rank}.txt"


def write_function(folder: Path, function: Callable[..., Any], args: Sequence[Any], search_path: Sequence[str]) -> None:
    """Writes what the workers need to call the function."""
    import cloudpickle  # type: ignore[import-untyped] # it has no types

    path_file(folder).write_text(json.dumps([os.path.abspath(entry) for entry in search_path]), encoding="utf-8")
    function_file(folder).write_bytes(cloudpickle.dumps((function, tuple(args))))


def read_search_path(folder: Path) -> list[str]:
    """The notebook's module search path."""
    entries: list[str] = json.loads(path_file(folder).read_text(encoding="utf-8"))
    return entries


def read_function(folder: Path) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The function and its arguments; their modules must be importable."""
    with function_file(folder).open("rb") as file:
        function, args = pickle.load(file)
    return function, args


def write_result(folder: Path, rank: int, result: Any) -> None:
    """Leaves what the function returned; the file is whole when it has its name."""
    import cloudpickle

    path = result_file(folder, rank)
    aside = path.with_suffix(".partial")
    aside.write_bytes(cloudpickle.dumps(result))
    aside.rename(path)
