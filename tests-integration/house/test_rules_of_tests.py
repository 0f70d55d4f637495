"""The rules for tests that a machine can check."""

from __future__ import annotations

import ast
import copy
import re
from pathlib import Path

from repository import ROOT, tree_of, where

CLOCKS = {"time.time", "time.monotonic", "time.perf_counter", "perf_counter", "monotonic"}
CLOCK = re.compile("|".join(map(re.escape, CLOCKS)))
TEST = re.compile(r"^ *def (test_\w+)", re.MULTILINE)
MAX_TEST_NAME = 70
#: a row of docs/features.md, or a task: "s104b"
ROW_CODE = re.compile(r"_[ast]\d+[ab]?(_|$)")
#: folders of tests-integration that hold programs: those of users stand alone, and tools have no support
PROGRAMS = {"benchmarks", "clients", "idioms", "scripts", "tools"}


def test_names_of_tests_are_sentences_of_one_line_without_codes() -> None:
    """Codes of rows stand in docstrings."""
    tests = [path for folder in ("packages", "tests-integration") for path in (ROOT / folder).rglob("test_*.py")]
    found = [
        f"{where(path)}: {name}"
        for path in tests
        for name in TEST.findall(path.read_text())
        if len(name) > MAX_TEST_NAME or ROW_CODE.search(name)
    ]
    assert found == []


def test_no_two_files_of_tests_define_the_same_thing() -> None:
    named: dict[str, list[tuple[Path, ast.FunctionDef | ast.ClassDef]]] = {}
    for path in (*ROOT.glob("packages/*/tests/**/*.py"), *ROOT.glob("tests-integration/**/*.py")):
        if path.name == "conftest.py" or PROGRAMS & set(path.relative_to(ROOT).parts):
            continue
        for node in tree_of(path).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.decorator_list:
                named.setdefault(node.name, []).append((path, node))
    homes: dict[str, list[str]] = {}
    for alike in named.values():
        for path, node in alike if len(alike) > 1 else ():
            plain = copy.copy(node)
            plain.body = node.body[ast.get_docstring(node) is not None :]
            homes.setdefault(ast.dump(plain), []).append(where(path, node))
    assert [places for places in homes.values() if len(places) > 1] == [], "define it in tests-integration/support"


def test_no_test_asserts_a_duration_of_less_than_seconds() -> None:
    """What a test asserts of a measured time holds on a machine that has other work too; costs are benchmarks."""
    tests = [path for folder in ("packages/*/tests", "tests-integration") for path in ROOT.glob(f"{folder}/**/*.py")]
    timed = [path for path in tests if CLOCK.search(path.read_text())]
    found = [where(path, node) for path in timed for node in short_durations(tree_of(path))]
    assert found == []


def test_an_assertion_of_a_short_duration_is_found() -> None:
    """Whether the time is compared as it is, by a name, or as the smallest of several."""
    for text in (
        "assert time.monotonic() - began < 0.2",
        "took = perf_counter() - began; best = min(best, took / 500); assert best < 5e-6",
        "took_s.append(time.perf_counter() - began); assert min(took_s) < 0.1",
        "assert 0.4 < time.time() - began < 20",
    ):
        assert len(short_durations(ast.parse(f"def test() -> None: {text}"))) == 1, text
    assert not short_durations(ast.parse("def test() -> None: assert time.time() - began < 30 and ratio < 0.5"))


def short_durations(tree: ast.Module) -> list[ast.Compare]:
    """The assertions that compare what a clock has measured with at most one second."""
    return [
        compared
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for asserted in ast.walk(function)
        if isinstance(asserted, ast.Assert)
        for compared in ast.walk(asserted)
        if isinstance(compared, ast.Compare)
        and _is_measured(compared, _measured(function))
        and any(_is_short(one) for one in (compared.left, *compared.comparators))
    ]


def _measured(function: ast.FunctionDef) -> set[str]:
    """The local names into which the reading of a clock goes."""
    names: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and _is_measured(node.value, names):
            names |= {one.id for target in node.targets for one in ast.walk(target) if isinstance(one, ast.Name)}
        if isinstance(node, ast.Call) and any(_is_measured(one, names) for one in node.args):
            names.add(ast.unparse(node.func).removesuffix(".append"))
    return names


def _is_short(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and 0 < node.value <= 1


def _is_measured(node: ast.AST, names: set[str]) -> bool:
    return any(
        (isinstance(one, ast.Call) and ast.unparse(one.func) in CLOCKS)
        or (isinstance(one, ast.Name) and one.id in names)
        for one in ast.walk(node)
    )
