"""`--explain` and `--dry_run`: what they print is what is started."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]

# Each process writes down its command and its environment.
WITNESS = """\
import json, os, sys
with open(f"saw-{os.environ.get('RANK', '0')}", "w") as file:
    json.dump({"command": sys.orig_argv, "environ": dict(os.environ)}, file)
"""
#: what stands for that which nobody knows before the start
GIVEN = {
    "ACCEL_STORE_PORT": "(a free port)",
    "MASTER_PORT": "(a free port)",
    "ACCEL_STORE_FD": "(an open socket)",
    "ACCEL_FLIGHT_RECORDER": "(a new folder)",
    "ACCEL_JOBS": "(a new folder)",
    "ACCEL_MEMORY_CHECKPOINTS": "(a new folder)",
}
#: what a shell or an interpreter notes of itself
OWN = {"LC_CTYPE", "PWD", "OLDPWD", "SHLVL", "_"}


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "a witness.py").write_text(WITNESS)
    return "a witness.py"


def planned(text: str) -> dict[int, tuple[list[str], dict[str, str], set[str]]]:
    """Of each rank the command, the variables that are set and those that are not, as a dry run prints them."""
    found: dict[int, tuple[list[str], dict[str, str], set[str]]] = {}
    rank = -1
    for line in text.splitlines():
        if line.startswith("rank "):
            name, _, command = line.partition(": ")
            rank = int(name.removeprefix("rank "))
            found[rank] = shlex.split(command), {}, set()
        elif line.endswith(" is unset"):
            found[rank][2].add(line.strip().removesuffix(" is unset"))
        else:
            name, _, value = line.strip().partition("=")
            found[rank][1][name] = value if value.startswith("(a") else shlex.split(value)[0]
    return found


def seen(folder: Path, before: dict[str, str]) -> dict[int, tuple[list[str], dict[str, str], set[str]]]:
    """The same, as the processes have seen it."""
    found = {}
    for file in folder.glob("saw-*"):
        saw = json.loads(file.read_text())
        after = {name: value for name, value in saw["environ"].items() if name not in OWN}
        changed = {name: GIVEN.get(name, value) for name, value in after.items() if before.get(name) != value}
        found[int(file.name.removeprefix("saw-"))] = saw["command"], changed, set(before) - set(after)
    return found


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        (["-n", "2", "--cpu"], {}),
        (["-n", "1", "--cpu", "--mixed_precision", "bf16"], {}),
        (["-n", "1", "--max_restarts", "2"], {}),
        (["-n", "1", "--log_dir", "logs"], {}),
        (["-n", "3", "--cpu", "--num_cpu_threads_per_process", "5", "--gradient_accumulation_steps", "4"], {}),
        (["-n", "2", "--cpu"], {"OMP_NUM_THREADS": "7", "ACCEL_STORE_PORT": "23456", "TORCHELASTIC_RUN_ID": "old"}),
        (["-n", "1"], {"ACCEL_STORE_PORT": "23456", "ACCEL_MIXED_PRECISION": "fp16"}),
    ],
)
def test_a_dry_run_prints_what_is_started(
    accel: Run,
    accel_program: Run,
    tmp_path: Path,
    script: str,
    silent_environ: dict[str, str],
    options: list[str],
    variables: dict[str, str],
) -> None:
    line = ["launch", *options, script, "--of", "the script", "$HOME"]
    dry = accel(*line[:1], "--dry_run", *line[1:], environ=variables)
    assert (dry.returncode, dry.stderr) == (0, "")
    assert not list(tmp_path.glob("saw-*")), "nothing was started"
    assert not (tmp_path / "logs").exists()
    done = accel_program(*line, environ=variables)
    assert done.returncode == 0, done.stderr
    assert planned(dry.stdout) == seen(tmp_path, {**silent_environ, **variables})


def test_an_explained_launch_starts_and_names_what_was_found(accel_program: Run, tmp_path: Path, script: str) -> None:
    done = accel_program("launch", "--explain", "-n", "2", "--cpu", script, environ={"ACCEL_MIXED_PRECISION": "bf16"})
    assert done.returncode == 0
    assert done.stdout == "", "the output is the script's"
    assert len(list(tmp_path.glob("saw-*"))) == 2
    lines = done.stderr.splitlines()
    assert "num_processes: 2  # flag" in lines
    assert "max_restarts: 0  # default" in lines
    assert (
        next(line for line in lines if line.startswith("mixed_precision: bf16  # ")) != "mixed_precision: bf16  # flag"
    )
    assert lines[-1] == "processes: 2, which meet on 127.0.0.1"


def test_another_launcher_is_named(accel: Run, script: str) -> None:
    done = accel("launch", "--explain", "--dry_run", "--cpu", script, environ={"RANK": "1", "WORLD_SIZE": "4"})
    assert done.returncode == 0
    assert "started by another launcher, which gave it RANK=1, WORLD_SIZE=4: one process" in done.stderr
    assert list(planned(done.stdout)) == [0]


def test_what_cannot_start_is_refused_by_a_dry_run_too(accel: Run) -> None:
    done = accel("launch", "--dry_run", "-n", "2", "missing.py")
    assert done.returncode == 2
    assert "script 'missing.py' does not exist" in done.stderr


@pytest.mark.parametrize("name", ["-m", "--no_python"])
def test_the_command_is_that_of_a_module_or_a_program(accel: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / "mine.py").write_text("")
    target = "mine" if name == "-m" else "true"
    found = planned(accel("launch", "--dry_run", "-n", "2", "--cpu", name, target, "-x").stdout)
    expected = [sys.executable, "-m", "mine", "-x"] if name == "-m" else ["true", "-x"]
    assert [command for command, _, _ in found.values()] == [expected, expected]
