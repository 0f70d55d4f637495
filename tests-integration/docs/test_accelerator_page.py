"""docs/reference/accelerator.md takes in the text of each method, and adds an example that runs."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from accel import Accelerator
from accel_testing import MakePool
from repository import ROOT

PAGE = ROOT / "docs" / "reference" / "accelerator.md"
DIRECTIVE = re.compile(r"^\.\. auto(method|property):: accel\.Accelerator\.(\w+)$", re.MULTILINE)
#: an entry: its heading, the directives, and what follows up to the next heading
ENTRY = re.compile(r"^### (.+)\n\n(?:.*\n)*?```\{eval-rst\}\n((?:.*\n)*?)```\n((?:(?!##).*\n)*)", re.MULTILINE)
#: of accel-verify
INNER = {"observer"}


def problems(page: str) -> list[str]:
    """What is missing on the page, in words."""
    public = {name for name in dir(Accelerator) if not name.startswith("_")} - INNER
    listed = [name for _, name in DIRECTIVE.findall(page)]
    lines = [f"{name} is listed {listed.count(name)} times" for name in sorted(public) if listed.count(name) != 1]
    lines += [f"{name} is no public name" for name in sorted(set(listed) - public)]
    found: set[str] = set()
    for heading, directives, text in ENTRY.findall(page):
        kinds = DIRECTIVE.findall(directives)
        found |= {name for _, name in kinds}
        example = re.search(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        used = set(re.findall(r"(?:accelerator|by_tokens)\.(\w+)", example[1])) if example else set()
        for kind, name in kinds:
            if name not in used:
                lines.append(f"{name}: the example below it does not use it")
            if kind == "method" and heading != f"`{name}`":
                lines.append(f"{name}: its heading is {heading!r}")
    return lines + [f"{name} is in no entry" for name in sorted(set(listed) - found)]


def undescribed(call: Any) -> list[str]:
    """The arguments that `help` says nothing about."""
    text = inspect.getdoc(call) or ""
    names = [name for name in inspect.signature(call).parameters if name != "self"]
    return [name for name in names if not re.search(rf"^    \**{name}: ", text, re.MULTILINE)]


def test_every_method_has_an_example() -> None:
    assert not problems(PAGE.read_text())


def test_every_argument_is_described() -> None:
    public = [name for name in dir(Accelerator) if not name.startswith("_")]
    calls: dict[str, Any] = {name: call for name in public if inspect.isfunction(call := getattr(Accelerator, name))}
    assert len(calls) > 40
    assert not [(name, it) for name, call in calls.items() for it in undescribed(call)]
    assert not undescribed(Accelerator)


@pytest.mark.parametrize(
    ("cut", "missing"),
    [
        ("accelerator.wait_for_everyone()", "wait_for_everyone: the example below it does not use it"),
        (".. automethod:: accel.Accelerator.gather\n", "gather is listed 0 times"),
    ],
)
def test_what_lacks_is_found(cut: str, missing: str) -> None:
    page = PAGE.read_text()
    assert cut in page
    assert missing in problems(page.replace(cut, ""))


@pytest.mark.parametrize("size", [1, 2])
def test_the_examples_run_one_after_the_other(
    world: MakePool, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert min(world(size).run(run_examples)) > 60


def run_examples() -> int:
    names: dict[str, Any] = {}
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for block in blocks:
        exec(compile(block, f"accelerator.md:\n{block}", "exec"), names)
    return len(blocks)
