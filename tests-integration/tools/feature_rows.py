"""Lists the rows of docs/features.md that no test of the ordinary suite names; exits with 1 if there are any."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"\b[Ss](\d{1,3}[ab]?)\b")


def rows() -> dict[str, str]:
    """Each row that is not marked as planned, with what works."""
    lines = re.findall(r"^\| (S\d+[ab]?) \| (.+) \|$", (ROOT / "docs" / "features.md").read_text(), flags=re.MULTILINE)
    return {row: text for row, text in lines if not text.startswith("*later:*")}


def named() -> dict[str, list[str]]:
    """Each row that a test of the ordinary suite names in its docstring, and those tests."""
    tests: dict[str, list[str]] = {}
    for folder in ("packages", "tests-integration"):
        for path in sorted((ROOT / folder).rglob("test_*.py")):
            for test, row in named_in(path.read_text()):
                tests.setdefault(row, []).append(f"{path.relative_to(ROOT)}::{test}")
    return tests


def named_in(source: str) -> Iterator[tuple[str, str]]:
    """Each test in the text of a file, and each row that it names; tests that only a soak runs hold no row."""
    module = ast.parse(source)
    if any(_is_only_for_soaks(node) for node in module.body if isinstance(node, ast.Assign)):
        return
    for node in ast.walk(module):
        if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
            continue
        if not any(map(_is_only_for_soaks, node.decorator_list)):
            for row in ROW.findall(ast.get_docstring(node) or ""):
                yield node.name, f"S{row}"


def _is_only_for_soaks(mark: ast.AST) -> bool:
    """Whether this decorator, or this assignment to `pytestmark`, keeps tests out of the ordinary suite."""
    return "mark.soak(only=True)" in ast.unparse(mark)


def untested() -> list[str]:
    """The rows that no test names."""
    tests = named()
    return [row for row in rows() if row not in tests]


if __name__ == "__main__":
    missing = untested()
    for row in missing:
        print(f"{row}: {rows()[row]}")
    print(f"{len(rows()) - len(missing)} rows tested, {len(missing)} not")
    sys.exit(1 if missing else 0)
