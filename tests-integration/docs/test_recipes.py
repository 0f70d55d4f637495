"""The scripts under docs/examples run, on one process and on two."""

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from accel_testing import stretched
from repository import ROOT
from suite.soak import in_soak

#: some are slow on a busy machine
pytestmark = pytest.mark.timeout(1200)
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))
PAGE = ROOT / "docs" / "tutorials" / "recipes.md"
#: a part of what each prints at its end
LAST_WORDS = {
    "averaged_weights": "epoch 2: loss",
    "causal_lm": "result: perplexity",
    "contrastive": "among 32 pairs",
    "cross_validation": "result: accuracy 9",
    "datasets_stream": "after 1440 samples an epoch",
    "digits": "accuracy",
    "distillation": "epoch 2: divergence",
    "early_stopping": "no improvement for 2 epochs",
    "gan": "epoch 2: critic",
    "image_classification": "of 360 held-out images",
    "long_context": "result: perplexity",
    "lora": "with the adapters from the disk",
    "optuna_search": "of 3\n",
    "preemptible": "epoch 5: loss",
    "profiling": "for ui.perfetto.dev: profile_0.json",
    "webdataset_stream": "after 1440 samples an epoch",
}
SHORTER = {
    "causal_lm": ["--epochs", "1", "--text", textwrap.__file__],
    "cross_validation": ["--folds", "2"],
    "datasets_stream": ["--epochs", "1"],
    "digits": ["--epochs", "1"],
    "image_classification": ["--epochs", "1"],
    "long_context": ["--epochs", "1", "--length", "256"],
    "lora": ["--epochs", "1"],
    "optuna_search": ["--trials", "3", "--epochs", "1"],
    "preemptible": ["--epochs", "6"],
    "webdataset_stream": ["--epochs", "1"],
}
#: whose result is the same on any number of processes, and how far roundings may move its numbers
ALIKE = {
    "causal_lm": 0.02,  # samples that are counted twice move it by more
    "cross_validation": 1.0,
    "datasets_stream": 1.0,
    "image_classification": 3.0,
    "long_context": 0.002,  # as printed: sums of float32 are rounded otherwise
    "lora": 0.5,  # in float64 the losses are equal
    "preemptible": 1.0,
    "webdataset_stream": 1.0,
}
NUMBER = re.compile(r"\d+(?:\.\d+)?")
Output = Callable[[Path, int], str]


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory, forking_python: str) -> Output:
    """What a script prints on some processes; it runs once in this file."""

    @cache
    def run(path: Path, processes: int) -> str:
        folder = tmp_path_factory.mktemp(path.stem)
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
        environ |= {"ACCEL_HOME": str(folder), "HF_HOME": str(folder), "HF_HUB_OFFLINE": "1"}
        launch = [forking_python, "-m", "accel", "launch", "--cpu", "-n", str(processes), str(path)]
        done = subprocess.run(
            [*launch, *SHORTER.get(path.stem, [])],
            cwd=folder,
            env=environ,
            capture_output=True,
            text=True,
            timeout=stretched(500),
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def result(text: str) -> tuple[str, list[float]]:
    """The line of the result: its words, and its numbers."""
    (line,) = (line for line in text.splitlines() if line.startswith("result: "))
    return NUMBER.sub("N", line), [float(number) for number in NUMBER.findall(line)]


def test_the_page_shows_every_script() -> None:
    assert [path.name for path in EXAMPLES if f"(../examples/{path.name})" not in PAGE.read_text()] == []


@pytest.mark.parametrize("processes", [2, *in_soak(1)])
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_recipe_runs(path: Path, processes: int, output: Output) -> None:
    """S10: what the pages show works as it is; one process runs those with a result that is compared."""
    assert LAST_WORDS[path.stem] in output(path, processes)


@pytest.mark.parametrize("name", ALIKE)
def test_the_result_is_the_same_on_two_processes(name: str, output: Output) -> None:
    path = ROOT / "docs" / "examples" / f"{name}.py"
    (words, alone), (same_words, together) = (result(output(path, processes)) for processes in (1, 2))
    assert words == same_words
    assert together == pytest.approx(alone, abs=ALIKE[name])


def test_each_process_leaves_a_trace(output: Output) -> None:
    profiled = output(ROOT / "docs" / "examples" / "profiling.py", 2)
    assert "process 1: read" in profiled
    assert "result: 2 traces for ui.perfetto.dev: profile_0.json, profile_1.json" in profiled
