"""A job that loses processes goes on from memory, and ends as the job that lost none; nothing is left in memory."""

import json
import os
import re
import signal
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import in_memory
import pytest
from accel_checkpoint.retention import list_checkpoints
from accel_launch.memory.job_folder import job_folders
from in_memory import STEPS, Plan
from jobs import ACCEL, TORCHRUN, Ended, Job, start

SCRIPT = Path(in_memory.__file__)
#: the command line before the number of processes
KEEPS = ("-m", "accel", "launch", "--cpu", "--memory_checkpoint_every", "5")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The folder that stands for a tmpfs, for this test alone."""
    return tmp_path / "memory"


def launch(plan: Plan, python: str, place: Path, *flags: str, size: int = 2) -> Job:
    by = (*KEEPS, "--memory_checkpoint_dir", str(place), *flags, "--num_processes")
    return start(SCRIPT, json.dumps(asdict(plan)), size=size, by=by, python=python)


def done(plan: Plan, rank: int = 0) -> Any:
    return json.loads((Path(plan.folder) / f"done-{rank}").read_text())


def whole(python: str, folder: Path, **settings: Any) -> Any:
    """What the job that lost no process ends with."""
    plan = Plan(str(folder / "whole"), [], **settings)
    ended = start(SCRIPT, json.dumps(asdict(plan)), by=ACCEL, python=python).end()
    assert ended.code == 0, ended.err
    return done(plan)


def resumed(ended: Ended) -> list[int]:
    return [int(step) for step in re.findall(r"resumed from .*: step (\d+), \d+ s old", ended.err)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_a_job_that_loses_ranks_ends_with_the_weights_of_the_whole(
    strategy: str, forking_python: str, tmp_path: Path, place: Path
) -> None:
    """A1: each rank, in each part of a step, while a checkpoint is written, and at the end of an epoch."""
    deaths: list[list[Any]] = [[1, 8, "forward"], [0, 12, "end"], [0, 19, "write"], [1, 24, "backward"], [1, 33, "end"]]
    plan = Plan(str(tmp_path / "killed"), deaths, strategy, pause_s=0.1)
    ended = launch(plan, forking_python, place, "--max_restarts", "1").end()
    assert ended.code == 0, ended.err
    assert {**done(plan), "began": 0} == whole(forking_python, tmp_path, strategy=strategy)
    assert (done(plan)["steps"], done(plan)["epochs"]) == (STEPS, 3)
    began = resumed(ended)
    assert len(began) == len(deaths)
    for (_, step, when), found in zip(deaths, began, strict=True):
        # of the steps that are repeated five are the interval, and the others came while a checkpoint was written
        assert 0 <= step - found <= 10 - (when != "write"), (began, deaths)
    assert ended.err.count("starts again at once (1 of 1 times)") == len(deaths)
    assert list(place.iterdir()) == []
    # memory is no project: no checkpoint was left there, and none was numbered
    assert list_checkpoints(tmp_path / "killed" / "checkpoints") == []


def test_a_final_failure_leaves_the_newest_on_the_disk(forking_python: str, tmp_path: Path, place: Path) -> None:
    """The disk has an older one; the same command then goes on from what was moved."""
    plan = Plan(str(tmp_path / "killed"), [[1, 13, "forward"]], pause_s=0.02, saves_at=3)
    ended = launch(plan, forking_python, place).end()
    assert ended.code == 128 + signal.SIGKILL
    assert f"the newest checkpoint in memory was moved to {plan.folder}/checkpoints/checkpoint_1" in ended.err
    assert list(place.iterdir()) == []
    again = launch(Plan(plan.folder, []), forking_python, place).end()
    assert again.code == 0, again.err
    assert resumed(again) == [10]
    assert {**done(plan), "began": 0} == whole(forking_python, tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_launcher_that_is_ended_leaves_the_newest_on_the_disk(
    number: signal.Signals, forking_python: str, tmp_path: Path, place: Path
) -> None:
    """A launcher that is killed cannot: its orphan killer does it."""
    plan = Plan(str(tmp_path / "killed"), [], pause_s=0.1)
    job = launch(plan, forking_python, place)
    wait_for_step(plan, 8)
    job.process.send_signal(number)
    job.end()
    until = time.monotonic() + 60
    while list(place.iterdir()):
        assert time.monotonic() < until, "the folder of the launcher is still there"
        time.sleep(0.05)
    assert len(list_checkpoints(Path(plan.folder) / "checkpoints")) == 1
    again = launch(Plan(plan.folder, []), forking_python, place).end()
    assert again.code == 0, again.err
    assert resumed(again)[0] >= 5
    assert {**done(plan), "began": 0} == whole(forking_python, tmp_path)


def wait_for_step(plan: Plan, step: int) -> None:
    until, path = time.monotonic() + 60, Path(plan.folder) / "at-0"
    while not path.exists() or int((path.read_text() or "0").split()[0]) < step:
        assert time.monotonic() < until
        time.sleep(0.02)


def test_torchrun_is_told_that_nobody_owns_the_memory(tmp_path: Path) -> None:
    plan = Plan(str(tmp_path / "killed"), [], every=5)
    ended = start(SCRIPT, json.dumps(asdict(plan)), size=1, by=TORCHRUN).end()
    assert ended.code != 0
    assert (
        "memory_checkpoint_every=5: nobody would remove them, as no `accel launch` watches these processes" in ended.err
    )


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="needs a tmpfs at /dev/shm")
def test_the_tmpfs_of_linux_is_used_and_left_empty(forking_python: str, tmp_path: Path) -> None:
    before = set(job_folders(Path("/dev/shm")))
    plan = Plan(str(tmp_path / "killed"), [[0, 8, "end"]], pause_s=0.02)
    by = (*KEEPS, "--max_restarts", "1", "--num_processes")
    ended = start(SCRIPT, json.dumps(asdict(plan)), by=by, python=forking_python).end()
    assert ended.code == 0, ended.err
    assert re.search(r"resumed from the checkpoint /dev/shm/accel-memory-\S+, in memory: step 5, ", ended.err)
    assert set(job_folders(Path("/dev/shm"))) <= before
