"""What `nox -s sizes` counts."""

import ast

import pytest
from syntax_size import nodes_of


@pytest.mark.parametrize(
    ("code", "nodes"),
    [
        ("", 1),
        ('"""A module."""', 1),
        ("import os\nfrom a import (\n    b,\n    c,\n)", 1),
        ("x = 1  # one", 4),
        ("x: list[int] = 1", 4),
        ('def f(a: int) -> str:\n    """Return it."""\n    return a', 6),
        ('class A:\n    """A class."""\n    a = "text"', 5),
        ('x = 1\n"""No docstring."""', 6),
    ],
)
def test_long_lines_imports_types_and_texts_count_nothing(code: str, nodes: int) -> None:
    assert nodes_of(ast.parse(code)) == nodes
