"""Every name of Accelerate that an installed library imports is answered by accel."""

import ast
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from accel_compat.finder import UPSTREAM, answer_for


def imported(folder: Path) -> Iterator[tuple[str, str, Path]]:
    """The modules below accelerate, and the names of them, that the files of a package import."""
    for file in folder.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        if f"import {UPSTREAM}" not in text and f"from {UPSTREAM}" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.ImportFrom)
                and not node.level
                and (node.module or "").partition(".")[0] == UPSTREAM
            ):
                yield from ((str(node.module), alias.name, file) for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from ((alias.name, "", file) for alias in node.names if alias.name.partition(".")[0] == UPSTREAM)


def is_answered(module: str, name: str) -> bool:
    ours = answer_for(module)
    if ours is None:
        return False
    return not name or hasattr(import_module(ours), name) or answer_for(f"{module}.{name}") is not None


@pytest.mark.parametrize("library", ["transformers", "peft", "trl", "diffusers"])
def test_every_name_that_a_library_imports_is_here(library: str) -> None:
    """S181: of the release that is installed, on every path, whether a test runs it or not."""
    spec = find_spec(library)
    if spec is None or spec.origin is None:
        pytest.skip(f"{library} is not installed")
    names = set(imported(Path(spec.origin).parent))
    lacking = [f"{module} {name} ({file.name})" for module, name, file in names if not is_answered(module, name)]
    assert names
    assert not lacking, "\n".join(sorted(lacking))


def test_a_name_that_is_not_here_is_found(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("from accelerate.utils.memory import sparkle\nimport accelerate.sparkles\n")
    assert [is_answered(module, name) for module, name, _ in imported(tmp_path)] == [False, False]
