"""A run that is gone on with, in the same record."""

import json
import logging
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from accel import Accelerator, ProjectConfiguration
from accel_testing import MakePool, RankFailure
from accel_track.local.lines import entries


class Counter:
    steps = 0

    def state_dict(self) -> dict[str, int]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.steps = state["steps"]


def train(folder: Path, kill_at: int, start_first: bool) -> None:
    project = ProjectConfiguration(project_dir=folder, automatic_checkpoint_naming=True)
    accelerator = Accelerator(cpu=True, log_with="local", project_config=project)
    torch.manual_seed(0)
    bare = torch.nn.Linear(2, 1)
    model, optimizer = accelerator.prepare(bare, torch.optim.SGD(bare.parameters(), lr=0.1))
    counter = Counter()
    accelerator.register_for_checkpointing(counter)
    if start_first:
        accelerator.init_trackers("project", {"lr": 0.1})
    accelerator.resume()
    if not start_first:
        accelerator.init_trackers("project", {"lr": 0.1})
    while counter.steps < 40:
        step = counter.steps
        loss = model(torch.ones(1, 2)).square().sum()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        counter.steps += 1
        accelerator.log({"loss": loss}, step=step)
        if step % 10 == 9:
            accelerator.log({"epoch loss": loss}, step=step // 10)
            accelerator.log_table("t", ["step"], [[step]], step=step)
        if counter.steps % 7 == 0:
            accelerator.save_state()
        if step == kill_at:
            accelerator.get_tracker("local")  # what was logged is on the disk, the newest checkpoint is older
            os.kill(os.getpid(), signal.SIGKILL)
    accelerator.end_training()


def killed(world: MakePool, folder: Path, kill_at: int, start_first: bool) -> None:
    with pytest.raises(RankFailure, match="SIGKILL"):
        world(1, join=False).run(train, folder, kill_at, start_first)


def record(folder: Path) -> dict[str, list[Any]]:
    (path,) = folder.glob("project/*/metrics.jsonl")
    lines = list(entries(path))
    return {
        name: [(line["step"], line["metrics"][name]) for line in lines if name in line["metrics"]]
        for name in ("loss", "epoch loss")
    }


@pytest.mark.parametrize("start_first", [False, True])
def test_a_killed_run_goes_on_in_its_record(world: MakePool, start_first: bool, tmp_path: Path) -> None:
    """S135: each step once, whatever was logged after the checkpoint, with the values of an unbroken run."""
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    killed(world, broken, 18, start_first)
    killed(world, broken, 33, start_first)
    pool = world(1, join=False)
    pool.run(train, broken, -1, start_first)
    pool.run(train, whole, -1, start_first)
    found = record(broken)
    assert found == record(whole)
    assert [step for step, _ in found["loss"]] == list(range(40))
    assert [step for step, _ in found["epoch loss"]] == [0, 1, 2, 3]
    (run,) = broken.glob("project/*")
    assert [entry["rows"] for entry in entries(run / "media.jsonl")] == [[[9]], [[19]], [[29]], [[39]]]
    story = json.loads((run / "run.json").read_text())
    assert len(story["restarts"]) == 2
    assert len(story["checkpoints"]) == 5
    assert story["state"] == "finished"
    assert len(list(broken.glob("project/*"))) == 1, "a run that was given up is gone"


def accelerator_in(folder: Path, **options: Any) -> Accelerator:
    accelerator = Accelerator(cpu=True, project_dir=folder, **options)
    accelerator.prepare(torch.nn.Linear(1, 1))
    return accelerator


def steps_of(folder: Path) -> list[int]:
    return [entry["step"] for entry in entries(folder / "metrics.jsonl")]


def test_what_was_logged_stays_when_an_old_checkpoint_is_loaded(tmp_path: Path) -> None:
    """S135: such as the best one, at the end."""
    accelerator = accelerator_in(tmp_path, log_with="local")
    accelerator.init_trackers("project")
    accelerator.log({"loss": 1.0}, step=0)
    accelerator.save_state(tmp_path / "best")
    accelerator.log({"loss": 2.0}, step=1)
    accelerator.load_state(tmp_path / "best")
    accelerator.log({"test": 3.0}, step=2)
    folder = accelerator.get_tracker("local", unwrap=True).folder
    accelerator.end_training()
    assert steps_of(folder) == [0, 1, 2]
    assert json.loads((folder / "run.json").read_text())["loaded_checkpoints"][0]["path"] == str(tmp_path / "best")


def test_a_checkpoint_of_another_project_leaves_its_record_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = accelerator_in(tmp_path / "first", log_with="local")
    first.init_trackers("project")
    first.log({"loss": 1.0}, step=0)
    first.save_state(tmp_path / "checkpoint")
    first.log({"loss": 2.0}, step=1)
    folder = first.get_tracker("local", unwrap=True).folder
    first.end_training()
    second = accelerator_in(tmp_path / "second", log_with="local")
    second.load_state(tmp_path / "checkpoint")
    with caplog.at_level(logging.WARNING, "accel"):
        second.init_trackers("project")
    assert "the tracker local begins a new run: there is no record" in caplog.text
    second.log({"loss": 3.0}, step=0)
    second.end_training()
    assert steps_of(folder) == [0, 1]
    third = accelerator_in(tmp_path / "third")
    third.load_state(tmp_path / "checkpoint")


def test_a_checkpoint_waits_for_what_was_logged(tmp_path: Path) -> None:
    project = ProjectConfiguration(project_dir=tmp_path, automatic_checkpoint_naming=True)
    accelerator = accelerator_in(tmp_path, log_with="local", project_config=project)
    accelerator.init_trackers("project")
    for step in range(50):
        accelerator.log({"loss": 1.0}, step=step)
    folder = accelerator.save_state(asynchronous=True)
    (path,) = tmp_path.glob("project/*/metrics.jsonl")
    assert len(list(entries(path))) == 50
    assert "checkpoints" not in json.loads((path.parent / "run.json").read_text()), "it may still fail"
    accelerator.log({"loss": 1.0}, step=60)
    accelerator.wait_for_checkpoint()
    about = json.loads((folder / "manifest.json").read_text().splitlines()[0])
    assert about["about"]["trackers"]["local"]["calls"] == 50
    accelerator.end_training()
    (event,) = json.loads((path.parent / "run.json").read_text())["checkpoints"]
    assert (event["step"], event["path"]) == (49, str(folder)), "of when it was taken"
