"""A checkpoint has one folder: ranks that were asked for different ones are told so, and none is written."""

import os
from pathlib import Path

import pytest
from accel import Accelerator
from accel.checkpoint.save_job import AUTOMATIC, SaveRequest, destination
from accel_checkpoint import CheckpointError
from accel_testing import MakePool
from torch import nn


def saved(folders: list[str]) -> str:
    accelerator = Accelerator(cpu=True)
    accelerator.prepare(nn.Linear(2, 2))
    try:
        return str(accelerator.save_state(folders[accelerator.process_index]))
    except CheckpointError as error:
        return str(error)


def test_unlike_folders_are_refused_on_all_ranks_with_what_each_asked(world: MakePool, tmp_path: Path) -> None:
    folders = [f"{tmp_path}/a", f"{tmp_path}/b", f"{tmp_path}/a"]
    rows = "".join(f"\n  rank {rank}: {folder}" for rank, folder in enumerate(folders))
    text = f"no checkpoint was written: save_state was asked for different folders{rows}\ngive every rank the same"
    assert world(3).run(saved, folders) == [text] * 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ending", ["", "/"])
def test_one_folder_may_be_written_in_two_ways(ending: str, world: MakePool, tmp_path: Path) -> None:
    folder = f"{tmp_path}/a"
    asked = [folder, os.path.relpath(folder) + ending]
    assert world(2).run(saved, asked) == [folder] * 2


def test_machines_that_lost_checkpoints_take_the_highest_number() -> None:
    requests = [
        SaveRequest(0, [AUTOMATIC], "/a", 3),
        SaveRequest(0, [AUTOMATIC], ""),
        SaveRequest(2, [AUTOMATIC], "/b", 5),
    ]
    assert [destination(requests, writer) for writer in (0, 2)] == [Path("/a/checkpoint_5"), Path("/b/checkpoint_5")]
