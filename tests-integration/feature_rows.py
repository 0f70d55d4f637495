"""Lists the rows of docs/features.md that no test names; exits with 1 when there are any."""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROW = re.compile(r"\b[Ss](\d{1,3}[ab]?)\b")


def rows() -> dict[str, str]:
    """Each row that is not marked as planned, with what works."""
    lines = re.findall(r"^\| (S\d+[ab]?) \| (.+) \|$", (ROOT / "docs" / "features.md").read_text(), flags=re.MULTILINE)
    return {row: text for row, text in lines if not text.startswith("*later:*")}


def named() -> dict[str, list[str]]:
    """Each row that a test names in its docstring, and those tests."""
    found: dict[str, list[str]] = {}
    for folder in ("packages", "tests-integration"):
        for path in sorted((ROOT / folder).rglob("test_*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                    for row in ROW.findall(f"{ast.get_docstring(node) or ''} {node.name.replace('_', ' ')}"):
                        found.setdefault(f"S{row}", []).append(f"{path.relative_to(ROOT)}::{node.name}")
    return found


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
