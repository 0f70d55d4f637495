"""Completion of words by click: the scripts, in the shells they are for."""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from accel_launch.cli.options import OPTIONS
from accel_launch.cli.program import COMMANDS

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Complete = Callable[..., list[str]]

SHELLS = ("bash", "zsh", "fish")


def shell(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@pytest.fixture(params=SHELLS)
def complete(request: pytest.FixtureRequest, accel: Run) -> Complete:
    """What one shell is told to offer after some words, the last of which is being written; `file`, `dir`: a kind."""
    name = request.param

    def ask(*words: str) -> list[str]:
        line = ["accel", *words]
        asked = {"COMP_WORDS": shlex.join(line), "COMP_CWORD": str(len(words))}
        if name == "fish":
            asked = {"COMP_WORDS": shlex.join(line[:-1]) + " " + words[-1], "COMP_CWORD": words[-1]}
        done = accel(environ={**asked, "_ACCEL_COMPLETE": f"{name}_complete"})
        assert done.stderr == ""
        lines = done.stdout.splitlines()
        if name == "zsh":
            return [value if kind == "plain" else kind for kind, value in zip(lines[::3], lines[1::3], strict=False)]
        pairs = [line.split("\t")[0].partition(",") for line in lines]
        return [value if kind == "plain" else kind for kind, _, value in pairs]

    return ask


def test_commands_are_offered(complete: Complete) -> None:
    assert set(COMMANDS) <= set(complete(""))
    assert complete("ver") == ["verify"]


@pytest.mark.parametrize("command", ["launch", "test", "env"])
def test_every_option_of_the_table_is_offered(complete: Complete, command: str) -> None:
    flags = {flag for option in OPTIONS for flag in option.opts if flag.startswith("--")}
    flags -= {"--module", "--no_python"} if command != "launch" else set()
    assert flags <= set(complete(command, "--"))
    assert ("--module" in complete(command, "--")) == (command == "launch")


def test_the_choices_of_an_option_are_offered(complete: Complete) -> None:
    assert set(complete("launch", "--mixed_precision", "")) == {"no", "bf16", "fp16", "fp8"}
    assert complete("launch", "--cpu", "--submit", "k") == ["kubernetes"]
    assert "train.py" not in complete("launch", "--num_processes", "")


def test_the_values_of_an_estimate_are_offered(complete: Complete) -> None:
    options = pytest.importorskip(
        "accel_big.estimate_options", reason="package accel-big brings it", exc_type=ImportError
    )
    assert set(complete("estimate-memory", "x", "--optimizer", "")) == set(options.STATES)
    assert set(complete("estimate-memory", "x", "--dtypes", "")) == set(options.DTYPES)
    assert set(complete("estimate-memory", "x", "--dtypes", "in")) == {"int8", "int4"}


def test_what_one_command_of_config_takes_is_offered_after_that_only(complete: Complete) -> None:
    offered = {word: set(complete("config", word, "--")) & {"--overwrite", "--origin"} for word in ("default", "show")}
    assert offered == {"default": {"--overwrite"}, "show": {"--origin"}}
    assert not {"--overwrite", "--origin"} & set(complete("config", "update", "--"))
    assert complete("config", "default", "--cpu", "--over") == ["--overwrite"]


def test_files_are_offered_for_the_script_and_folders_for_logs(complete: Complete) -> None:
    assert complete("launch", "-n", "2", "") == ["file"]
    assert complete("launch", "--cpu", "--config_file", "") == ["file"]
    assert complete("launch", "--log_dir", "") == ["dir"]


def test_after_the_script_there_are_files_and_no_options(complete: Complete) -> None:
    assert complete("launch", "-n", "2", "train.py", "--") == ["file"]
    assert complete("launch", "train.py", "") == ["file"]
    # A value is no script.
    assert "--cpu" in complete("launch", "--mixed_precision", "no", "--c")


def test_the_words_of_a_command_are_offered_once(complete: Complete) -> None:
    assert set(complete("checkpoint", "")) >= {"ls", "verify"}
    assert "ls" not in complete("checkpoint", "verify", "")


@pytest.mark.parametrize("name", SHELLS)
def test_the_script_is_one_for_its_shell(accel: Run, tmp_path: Path, name: str) -> None:
    done = accel(environ={"_ACCEL_COMPLETE": f"{name}_source"})
    assert (done.returncode, done.stderr) == (0, "")
    (tmp_path / "script").write_text(done.stdout)
    subprocess.run([shell(name), "-n", tmp_path / "script"], check=True)


def test_bash_completes_by_the_script(accel: Run, tmp_path: Path, silent_environ: Mapping[str, str]) -> None:
    (tmp_path / "completion.bash").write_text(accel(environ={"_ACCEL_COMPLETE": "bash_source"}).stdout)
    (tmp_path / "accel").write_text(f"#!/bin/sh\nexec {sys.executable} -m accel_launch\n")
    (tmp_path / "accel").chmod(0o755)
    code = 'eval "$(cat completion.bash)"; COMP_WORDS=(accel launch --submit k); COMP_CWORD=3\n'
    code += "_accel_completion accel; echo ${COMPREPLY[@]}"
    environ = {**silent_environ, "PATH": f"{tmp_path}:{silent_environ['PATH']}"}
    done = subprocess.run([shell("bash"), "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.stdout == "kubernetes\n", done.stderr
