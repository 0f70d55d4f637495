"""What cannot be started is refused before anything starts."""

import os
import sys
from pathlib import Path

import pytest
from accel_launch.cli.launch_command import resolve_options
from accel_launch.job import job
from accel_launch.job.script_check import script_problem
from accel_state.errors import CannotRun


def problem(folder: Path, script: str | None, *, module: bool = False, no_python: bool = False) -> str | None:
    modes = [*(["--module"] if module else []), *(["--no_python"] if no_python else [])]
    return script_problem(resolve_options([*modes, *filter(None, [script])], {"PATH": os.environ["PATH"]}), folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("")
    package = tmp_path / "some_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "work.py").write_text("")
    runnable = tmp_path / "runnable_package"
    runnable.mkdir()
    (runnable / "__main__.py").write_text("")
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    return tmp_path


@pytest.mark.parametrize("script", ["train.py", "./train.py"])
def test_a_file_is_fine(folder: Path, script: str) -> None:
    assert problem(folder, script) is None


def test_a_missing_file_names_the_path_the_folder_and_the_nearest_file(folder: Path) -> None:
    assert problem(folder, "tran.py") == (
        f"script 'tran.py' does not exist; did you mean 'train.py'? (working directory {folder})"
    )


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("some_package", "is a directory"),
        ("nowhere/train.py", "there is no directory"),
        (None, "no script was given"),
    ],
)
def test_other_scripts_that_are_none(folder: Path, script: str | None, words: str) -> None:
    assert words in (problem(folder, script) or "")


@pytest.mark.parametrize("name", ["train", "some_package.work", "runnable_package", "json.tool", "email.mime.text"])
def test_a_module_is_found_and_not_imported(folder: Path, name: str) -> None:
    assert problem(folder, name, module=True) is None
    assert "some_package" not in sys.modules


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("trian", "module 'trian' was not found"),
        ("some_package.wrok", "did you mean 'some_package.work'?"),
        ("some_package", "a package without a __main__ module"),
        ("train.sub", "train is not a package"),
        ("train.py", "leave out -m to run the file train.py"),
        ("some/file", "is not a module name"),
    ],
)
def test_a_module_that_cannot_run_is_refused(folder: Path, name: str, words: str) -> None:
    assert words in (problem(folder, name, module=True) or "")


def test_a_program_must_be_there_and_be_executable(folder: Path) -> None:
    assert problem(folder, "sh", no_python=True) is None
    assert "was not found" in (problem(folder, "no-such-program", no_python=True) or "")
    assert "is not executable" in (problem(folder, "./run.sh", no_python=True) or "")
    (folder / "run.sh").chmod(0o755)
    assert problem(folder, "./run.sh", no_python=True) is None


def test_a_script_cannot_be_a_module_and_a_program(folder: Path) -> None:
    assert "give one of the two" in (problem(folder, "sh", no_python=True, module=True) or "")


def test_as_accelerate_without_its_package_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "find_spec", lambda name: None)
    monkeypatch.chdir(folder)
    with pytest.raises(CannotRun, match=r"--as_accelerate needs package accel-compat, .* pip install ./packages/accel"):
        job.read_job(resolve_options(["--as_accelerate", "train.py"], {}))
