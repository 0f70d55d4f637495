"""`accel estimate-memory`: what people type, what they read, and the exit code."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import click
import pytest
from accel_big.command import COMMAND
from accel_big.estimate_options import DEFAULT_DTYPES, DTYPES, STATES

Run = Callable[..., "subprocess.CompletedProcess[str]"]

MODELS = """\
import torch
from torch import nn

print("a word of the module")


def make():
    return nn.Sequential(nn.Linear(1000, 1000), nn.BatchNorm1d(1000))
"""

# 1001000 numbers and 4000 of the norm, of which 2000 are trained, and its counter of 8 bytes
TABLE = """\
models:make, a Sequential: 1,003,000 parameters, 3.83 MiB as built

dtype     largest layer       total  gradients  state of adamw   training
float32        3.82 MiB    3.83 MiB   3.83 MiB        7.65 MiB  15.31 MiB
bfloat16       1.91 MiB    1.92 MiB   1.91 MiB        3.83 MiB   7.66 MiB
int8         977.54 KiB  981.45 KiB          -               -          -
"""


@pytest.fixture
def models(tmp_path: Path) -> str:
    (tmp_path / "models.py").write_text(MODELS)
    return "models:make"


def test_the_table_is_aligned_and_alone_on_stdout(accel: Run, models: str) -> None:
    done = accel("estimate-memory", models, "--dtypes", "fp32", "bf16", "int8", environ={"PYTHONSAFEPATH": ""})
    assert (done.returncode, done.stderr) == (0, "a word of the module\n")
    assert done.stdout.startswith(TABLE)
    words = " ".join(done.stdout.removeprefix(TABLE).split())
    assert "Largest layer: 0 (Linear). The largest layer is the module that holds the most" in words
    assert "Activations, which grow with the batch, are not counted. With --mixed_precision" in words


def test_json_is_bytes(accel: Run, models: str) -> None:
    done = accel("estimate-memory", "--json", "--optimizer=sgd_momentum", "--dtypes", "float32,int4", models)
    assert done.returncode == 0
    said = json.loads(done.stdout)
    assert (said["parameters"], said["buffers"], said["optimizer"], said["notes"]) == (
        1003000,
        2001,
        "sgd_momentum",
        [],
    )
    floats = 1005000
    assert said["dtypes"] == [
        {
            "dtype": "float32",
            "largest_layer": "0 (Linear)",
            "largest_layer_bytes": 4 * 1001000,
            "total_bytes": 4 * floats + 8,
            "gradients_bytes": 4 * 1003000,
            "optimizer_state_bytes": 4 * 1003000,
            "training_bytes": 4 * floats + 8 + 8 * 1003000,
        },
        {
            "dtype": "int4",
            "largest_layer": "0 (Linear)",
            "largest_layer_bytes": 1001000 // 2,
            "total_bytes": floats // 2 + 8,
            "gradients_bytes": None,
            "optimizer_state_bytes": None,
            "training_bytes": None,
        },
    ]


def test_a_file_and_a_name_are_taken_wherever_the_file_is(accel: Run, models: str, tmp_path: Path) -> None:
    (tmp_path / "my code").mkdir()
    (tmp_path / "my code" / "width.py").write_text("WIDTH = 1000")
    code = MODELS.replace("import torch\n", "from width import WIDTH\n").replace("1000, 1000", "WIDTH, WIDTH")
    path = tmp_path / "my code" / "big-models.py"
    path.write_text(code)
    for named in (str(path), "my code/big-models.py"):
        done = accel("estimate-memory", f"{named}:make", "--dtypes", "fp32", "bf16", "int8")
        assert (done.returncode, done.stderr) == (0, "a word of the module\n")
        assert done.stdout.startswith(TABLE.replace("models:make", f"{named}:make"))


def test_everything_that_is_wrong_is_told_at_once_and_no_code_is_run(accel: Run, models: str) -> None:
    done = accel("estimate-memory", "nothing:make", "--dtypes", "float33", "--optimizer", "adan")
    assert (done.returncode, done.stdout) == (2, "")
    first, *rest = done.stderr.splitlines()
    assert first == "accel: error: 3 problems"
    for words in (
        "there is no dtype 'float33' (known: float64, float32,",
        "there is no optimizer 'adan' (known: adam, adamw,",
        "module 'nothing' is not found",
    ):
        assert any(words in line for line in rest)
    done = accel("estimate-memory", models, "--dtypes", "float33")
    assert done.returncode == 2
    assert "a word of the module" not in done.stderr


def test_a_mistake_of_the_model_has_its_line_and_no_traceback(accel: Run, models: str, tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text("def make():\n    return {}['width']\n")
    done = accel("estimate-memory", models)
    assert (done.returncode, done.stdout) == (2, "")
    place = f"{tmp_path / 'models.py'}:2 in make: return {{}}['width']"
    assert done.stderr == f"accel: error: models:make raises KeyError: 'width' ({place})\n"


def test_the_installed_command_finds_modules_of_the_working_directory(
    models: str, silent_environ: Mapping[str, str], tmp_path: Path
) -> None:
    """Its own folder is first in the search path, and not the working directory; with PYTHONSAFEPATH neither is."""
    code = "import sys; sys.path.remove(''); from accel_launch.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "estimate-memory", models]
    done = subprocess.run(command, env=silent_environ, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "a word of the module\n")
    code = code.replace("sys.path.remove(''); ", "")
    safe = {**silent_environ, "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-c", code, "estimate-memory", models]
    done = subprocess.run(command, env=safe, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "module 'models' is not found" in done.stderr


def test_help_is_printed_without_torch(silent_environ: Mapping[str, str]) -> None:
    code = (
        "import sys; from accel_launch.cli import main; main(['estimate-memory', '--help'])\n"
        "print([name for name in ('torch', 'yaml', 'numpy', 'accel') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], env=silent_environ, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: accel estimate-memory ")
    assert done.stdout.endswith("\n[]\n")


def test_help_lists_every_option_dtype_and_optimizer_and_the_defaults() -> None:
    text = " ".join(COMMAND.get_help(click.Context(COMMAND)).split())
    words = re.sub(r"[,:;.]", " ", text).split()
    assert {*DTYPES, *STATES, "--dtypes", "--optimizer", "--max_memory", "--json"} <= set(words)
    assert f"Default: {' '.join(DEFAULT_DTYPES)}." in text
    assert f"Default: {COMMAND.make_context('estimate-memory', ['m:x']).params['optimizer']}." in text


@pytest.mark.parametrize(
    ("tokens", "model", "dtypes"),
    [
        (["m:x"], "m:x", [*DEFAULT_DTYPES]),
        (["m:x", "--dtypes", "a", "b", "--json"], "m:x", ["a", "b"]),
        (["--dtypes", "a", "b", "c", "m:x"], "m:x", ["a", "b", "c"]),
        (["--dtypes=a,b", "m:x"], "m:x", ["a", "b"]),
        (["--dtypes", "a", "--optimizer", "sgd", "./folder"], "./folder", ["a"]),
        (["--dtypes", "a", "--dtypes", "b", "m:x"], "m:x", ["a", "b"]),
        (["--dtypes", "a", "b", "--max_memory", "0=1GB", "cpu=1GB", "m:x"], "m:x", ["a", "b"]),
    ],
)
def test_dtypes_may_be_anywhere(tokens: list[str], model: str, dtypes: list[str]) -> None:
    found = COMMAND.make_context("estimate-memory", tokens).params
    assert (found["model"], found["dtypes"]) == (model, dtypes)


@pytest.mark.parametrize(
    ("tokens", "problem"),
    [
        ([], "Missing argument 'MODEL'"),
        (["a:b", "c:d"], "Got unexpected extra argument (c:d)"),
        (["a:b", "--dtypes"], "Option '--dtypes' requires an argument"),
        (["a:b", "--dtypes", "--json"], "--dtypes needs a value, found none"),
        (["a:b", "--json=yes"], "Option '--json' does not take a value"),
        (["a:b", "--jsn"], "No such option '--jsn'"),
        (["a:b", "--library_name", "timm"], "--library_name is not an option here: config.json says"),
        (["a:b", "--batch_size=4"], "activations are not counted"),
    ],
)
def test_a_wrong_command_line_is_told(accel: Run, tokens: list[str], problem: str) -> None:
    done = accel("estimate-memory", *tokens)
    assert done.returncode == 2
    assert problem in done.stderr
