"""The command of each process: Python and a file, Python and a module, or a program by itself."""

import sys
from pathlib import Path

import pytest
from accel_launch.cli.launch_command import resolve_options
from accel_launch.job.job import Job, read_job
from accel_launch.job.plan import RendezvousInfo


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def job_of(folder: Path, *words: str) -> Job:
    environ = {"ACCEL_HOME": str(folder / "nothing"), "PATH": "/bin:/usr/bin", "CUDA_VISIBLE_DEVICES": ""}
    return read_job(resolve_options(["--cpu", *words], environ))


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["train.py", "-m", "x"], (sys.executable, "train.py", "-m", "x")),
        (["-m", "train", "--cpu"], (sys.executable, "-m", "train", "--cpu")),
        (["--module", "train"], (sys.executable, "-m", "train")),
        (["--no_python", "sh", "-c", "true"], ("sh", "-c", "true")),
    ],
)
def test_each_process_runs_the_file_the_module_or_the_program(
    folder: Path, words: list[str], command: tuple[str, ...]
) -> None:
    alone = job_of(folder, *words)
    assert [spec.command for spec in alone.processes({}, None)] == [command]
    several = job_of(folder, "-n", "2", *words)
    meeting = RendezvousInfo(store_port=1, store_fd=0, master_port=2)
    assert [spec.command for spec in several.processes({}, meeting)] == [command] * 2
