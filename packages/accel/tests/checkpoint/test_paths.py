"""Folders stay where they were when they were given, and may have any name that a disk takes."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from accel import Accelerator, load_checkpoint_in_model
from accel.utils import DataLoaderConfiguration, ProjectConfiguration
from accel_state import release
from torch import nn
from torch.utils.data import DataLoader


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another working directory, to which a script may change; the test begins in that of `tmp_path`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    return tmp_path / "elsewhere"


def naming() -> ProjectConfiguration:
    return ProjectConfiguration(automatic_checkpoint_naming=True)


def by_field() -> Accelerator:
    project = naming()
    project.project_dir = "runs"
    return Accelerator(cpu=True, log_with="local", project_config=project)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Accelerator(cpu=True, log_with="local", project_dir="runs", project_config=naming()),
        lambda: Accelerator(
            cpu=True, log_with="local", project_config=ProjectConfiguration("runs", automatic_checkpoint_naming=True)
        ),
        by_field,
    ],
    ids=["project_dir", "project_config", "a field"],
)
def test_a_project_stays_in_its_folder_after_a_change_of_directory(tmp_path: Path, elsewhere: Path, make: Any) -> None:
    for number in range(2):
        os.chdir(tmp_path)
        release()
        accelerator = make()
        os.chdir(elsewhere)
        accelerator.init_trackers("mine")
        model = accelerator.prepare(nn.Linear(1, 1))
        assert accelerator.resume() == (tmp_path / "runs/checkpoints/checkpoint_0" if number else None)
        with torch.no_grad():
            assert model.weight.item() == 7 or not number
            model.weight.fill_(7)
        accelerator.save_state(asynchronous=number == 1)
        accelerator.end_training()
    assert sorted(one.name for one in (tmp_path / "runs/checkpoints").iterdir()) == ["checkpoint_0", "checkpoint_1"]
    assert len(list((tmp_path / "runs/mine").iterdir())) == 1, "the same run goes on"
    assert not list(elsewhere.iterdir())


def test_logs_and_lines_of_loaders_stay_in_theirs(tmp_path: Path, elsewhere: Path) -> None:
    accelerator = Accelerator(
        cpu=True,
        log_with="local",
        project_config=ProjectConfiguration(logging_dir="logs"),
        dataloader_config=DataLoaderConfiguration(consumption_log="lines.jsonl"),
    )
    data: Any = list(range(4))
    loader: Any = accelerator.prepare(DataLoader(data))
    os.chdir(elsewhere)
    accelerator.init_trackers("mine")
    list(loader)
    accelerator.end_training()
    assert (tmp_path / "logs/mine").is_dir()
    assert (tmp_path / "lines.jsonl").is_file()
    assert not list(elsewhere.iterdir())


def test_a_save_behind_goes_where_it_was_asked_for(tmp_path: Path, elsewhere: Path) -> None:
    accelerator = Accelerator(cpu=True)
    accelerator.prepare(nn.Linear(1, 1))
    folder = accelerator.save_state("saved", asynchronous=True)
    os.chdir(elsewhere)
    accelerator.wait_for_checkpoint()
    assert folder == tmp_path / "saved"
    assert (folder / "manifest.json").is_file()
    assert not list(elsewhere.iterdir())


def test_a_path_with_bytes_that_are_no_utf_8_is_saved_to_and_loaded_from(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"bytes\xff")
    project = ProjectConfiguration(folder, automatic_checkpoint_naming=True)
    accelerator = Accelerator(cpu=True, project_config=project, log_with="local")
    accelerator.init_trackers(os.fsdecode(b"mine\xff"))
    model = accelerator.prepare(nn.Linear(1, 1))
    optimizer = accelerator.prepare(torch.optim.AdamW(model.parameters()))
    accelerator.backward(model(torch.ones(1, 1)).sum())
    optimizer.step()
    kept = model.weight.detach().clone()
    accelerator.save_state()
    accelerator.save_model(model, folder / "safe")
    accelerator.save_model(model, folder / "pickled", safe_serialization=False)
    for load in (
        accelerator.resume,
        lambda: accelerator.load_state(folder / "checkpoints/checkpoint_0"),
        lambda: load_checkpoint_in_model(model, folder / "safe"),
        lambda: load_checkpoint_in_model(model, folder / "pickled"),
    ):
        with torch.no_grad():
            model.weight.zero_()
        load()
        assert model.weight.equal(kept)
    accelerator.end_training()
