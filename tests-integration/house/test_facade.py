"""An Accelerator has the text of each method, and a part has its code."""

from __future__ import annotations

import ast

import pytest
from repository import ROOT, tree_of

FACADE = ROOT / "packages" / "accel" / "src" / "accel" / "accelerator.py"
#: what makes the parts
MAKES_PARTS = {"__init__", "_assemble", "__setstate__"}
SIMPLE = (ast.Return, ast.Expr, ast.Assign)


def problems(facade: ast.ClassDef) -> list[str]:
    """What of a class is more than a table of forwards."""
    found = ["it has a base"] if facade.bases else []
    for node in facade.body:
        if isinstance(node, ast.FunctionDef) and node.name not in MAKES_PARTS:
            body = node.body[ast.get_docstring(node) is not None :]
            if len(body) != 1 or not isinstance(body[0], SIMPLE):
                found.append(f"{node.name} has {len(body)} statements")
    return found


def test_the_facade_is_a_table_of_forwards() -> None:
    (facade,) = (node for node in tree_of(FACADE).body if isinstance(node, ast.ClassDef))
    assert not problems(facade)


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("class A(B): ...", "it has a base"),
        ("class A:\n def it(self):\n  'Text.'\n  part = self.part\n  return part.it()", "it has 2 statements"),
        ("class A:\n def it(self):\n  if self.part:\n   self.end()", "it has 1 statements"),
    ],
)
def test_more_than_a_forward_is_found(code: str, problem: str) -> None:
    (facade,) = ast.parse(code).body
    assert isinstance(facade, ast.ClassDef)
    assert problems(facade) == [problem]
