"""What `resume` says of checkpoints in memory whose time or project is not as it should be."""

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from accel import Accelerator
from accel.utils import ProjectConfiguration
from accel_checkpoint import CheckpointError, Manifest
from accel_state import release


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProjectConfiguration:
    """A project whose launcher keeps checkpoints in memory."""
    (tmp_path / "memory").mkdir()
    monkeypatch.setenv("ACCEL_MEMORY_CHECKPOINTS", str(tmp_path / "memory"))
    release()
    return ProjectConfiguration(tmp_path / "project", memory_checkpoint_every=5)


@pytest.mark.parametrize(
    ("about", "age"), [({}, "step 3, of unknown age"), ({"written": "2999-01-01T00:00:00+00:00"}, "step 3, 0 s old")]
)
def test_resume_says_what_it_knows_of_the_age(
    about: dict[str, Any], age: str, project: ProjectConfiguration, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever wrote the checkpoint may have said no time, or had a clock that is ahead."""
    memory = Accelerator(cpu=True, project_config=project).checkpoints.memory
    assert memory is not None
    with caplog.at_level(logging.WARNING, "accel"):
        memory.resumed((tmp_path, Manifest({"steps": 3} | about, {}, {}, [], {})))
    words = [record.getMessage() for record in caplog.records]
    assert f"resumed from the checkpoint {tmp_path}, on the disk: {age}" in words


@pytest.mark.parametrize("whose", ["own", "of one that runs", "of one that has ended"])
def test_resume_says_if_another_job_saves_to_the_project(
    whose: str, project: ProjectConfiguration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """Two jobs may share a project, and the newest may be of the other."""
    other = tmp_path / ("memory" if whose == "own" else "of-the-other")
    other.mkdir(exist_ok=True)
    with monkeypatch.context() as patch:
        patch.setenv("ACCEL_MEMORY_CHECKPOINTS", str(other))
        saved = Accelerator(cpu=True, project_config=project).save_state(tmp_path / "project/checkpoints/checkpoint_0")
    release()
    if whose == "of one that has ended":
        shutil.rmtree(other)
    with caplog.at_level(logging.WARNING, "accel"):
        assert Accelerator(cpu=True, project_config=project).resume() == Path(saved)
    (words,) = [record.getMessage() for record in caplog.records if "resumed from" in record.getMessage()]
    told = ", saved by another job, which may still run" if whose == "of one that runs" else ""
    assert words.startswith(f"resumed from the checkpoint {saved}, on the disk{told}: step 0, ")


def test_a_project_that_is_a_file_is_told_by_resume(project: ProjectConfiguration, tmp_path: Path) -> None:
    (tmp_path / "project").write_text("")
    accelerator = Accelerator(cpu=True, project_config=project)
    with pytest.raises(CheckpointError, match=r"no checkpoint could be written here:\n.*is a file, not a folder"):
        accelerator.resume()
