"""What cannot be started is refused before anything starts."""

import os
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
    (tmp_path / "some_package").mkdir()
    return tmp_path


@pytest.mark.parametrize("script", ["train.py", "./train.py", "some_package"])
def test_a_file_is_fine_and_so_is_a_folder_which_python_can_run(folder: Path, script: str) -> None:
    assert problem(folder, script) is None


def test_a_missing_file_names_the_path_the_folder_and_the_nearest_file(folder: Path) -> None:
    assert problem(folder, "tran.py") == (
        f"script 'tran.py' does not exist; did you mean 'train.py'? (working directory {folder})"
    )


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("nowhere/train.py", "script 'nowhere/train.py' does not exist (working directory"),
        (None, "no script was given"),
    ],
)
def test_other_scripts_that_are_none(folder: Path, script: str | None, words: str) -> None:
    assert words in (problem(folder, script) or "")


def test_a_script_cannot_be_a_module_and_a_program(folder: Path) -> None:
    assert "give one of the two" in (problem(folder, "sh", no_python=True, module=True) or "")


def test_as_accelerate_without_its_package_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "find_spec", lambda name: None)
    monkeypatch.chdir(folder)
    with pytest.raises(CannotRun, match=r"--as_accelerate needs package accel-compat, .* pip install ./packages/accel"):
        job.read_job(resolve_options(["--as_accelerate", "train.py"], {}))
