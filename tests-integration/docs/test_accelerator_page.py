"""docs/reference/accelerator.md takes in the text of each method, and adds an example that runs."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from accel import Accelerator, DataLoaderConfiguration
from accel_data import Ending
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


def test_every_ending_is_described() -> None:
    text = inspect.getdoc(DataLoaderConfiguration) or ""
    (described,) = re.findall(r"^    ending: ((?:.*\n)(?:     .*\n)*)", text, re.MULTILINE)
    assert set(re.findall(r'"(\w+)"', described)) == {ending.value for ending in Ending}


@pytest.mark.parametrize("size", [1, 2])
def test_the_example_of_the_class_is_a_whole_training(
    world: MakePool, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # the second training resumes from the first
    assert world(size).run(run_example_of_the_class) == [([0, 1], 10)] * size


def run_example_of_the_class() -> tuple[list[int], int]:
    import torch
    from accel import ProjectConfiguration
    from torch.nn.functional import cross_entropy
    from torch.utils.data import DataLoader, TensorDataset

    text = inspect.getdoc(Accelerator) or ""
    example = "if True:\n" + text.partition("::\n")[2].partition("`accel launch")[0]
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(10, 4), torch.randint(3, (10,)))
    begun: list[int] = []

    def noted(start: int, end: int) -> range:
        begun.append(start)
        return range(start, end)

    names: dict[str, Any] = {"torch": torch, "cross_entropy": cross_entropy, "range": noted}
    names |= {"Accelerator": Accelerator, "ProjectConfiguration": ProjectConfiguration}
    for epochs in (1, 2):
        model = torch.nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(data, batch_size=2)
        names |= {"model": model, "optimizer": optimizer, "loader": loader, "test_loader": loader, "epochs": epochs}
        exec(example, names)
    return begun, len(torch.cat(names["right"]))
