"""ProjectConfiguration: what checkpoints are called, how many are kept, and which one is loaded."""

import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from accel import Accelerator
from accel.utils import ProjectConfiguration
from accel_checkpoint import CheckpointError, is_whole
from accel_checkpoint.filesystem import Filesystem
from accel_checkpoint.hidden_folder import hidden_path
from accel_checkpoint.manifest import MANIFEST
from accel_state import release
from accel_testing import MakePool, RankFailure
from torch import nn


def naming(folder: Path | str, limit: int | None = None, **settings: Any) -> tuple[Accelerator, Any]:
    release()
    project = ProjectConfiguration(folder, automatic_checkpoint_naming=True, total_limit=limit, **settings)
    accelerator = Accelerator(cpu=True, project_config=project)
    return accelerator, accelerator.prepare(nn.Linear(2, 2))


def fill(model: Any, value: float) -> None:
    with torch.no_grad():
        model.weight.fill_(value)


def names(folder: Path) -> list[str]:
    return sorted(one.name for one in (folder / "checkpoints").iterdir())


def test_three_saves_are_called_0_1_and_2(tmp_path: Path) -> None:
    """S93."""
    accelerator, _ = naming(tmp_path)
    assert [accelerator.save_state().name for _ in range(3)] == [f"checkpoint_{number}" for number in range(3)]
    assert names(tmp_path) == ["checkpoint_0", "checkpoint_1", "checkpoint_2"]


@pytest.mark.parametrize(("limit", "left"), [(1, [10]), (2, [9, 10]), (None, list(range(11)))])
@pytest.mark.parametrize("behind", [False, True])
def test_the_newest_are_kept_of_11(limit: int | None, left: list[int], behind: bool, tmp_path: Path) -> None:
    accelerator, _ = naming(tmp_path, limit)
    for _ in range(11):
        accelerator.save_state(asynchronous=behind)
    accelerator.end_training()
    assert sorted(names(tmp_path)) == sorted(f"checkpoint_{number}" for number in left)
    assert accelerator.load_state().name == "checkpoint_10"


def test_an_old_checkpoint_goes_only_when_the_new_one_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T28."""
    accelerator, _ = naming(tmp_path, 1)
    seen = []
    remove = Filesystem.remove

    def watched(self: Filesystem, path: Path) -> None:
        seen.append([one.name for one in (tmp_path / "checkpoints").iterdir() if is_whole(one) and one.name[0] != "."])
        remove(self, path)

    monkeypatch.setattr(Filesystem, "remove", watched)
    for _ in range(3):
        accelerator.save_state()
    assert seen == [["checkpoint_1"], ["checkpoint_2"]]


def test_numbers_go_on_from_what_is_on_the_disk(tmp_path: Path) -> None:
    """T28: not from 0, and not over what is there, whole or not."""
    accelerator, _ = naming(tmp_path, 2)
    for _ in range(2):
        accelerator.save_state()
    accelerator, _ = naming(tmp_path, 2)
    assert accelerator.save_iteration == 2
    assert accelerator.save_state().name == "checkpoint_2"
    (tmp_path / "checkpoints" / "checkpoint_7").mkdir()
    assert accelerator.save_state().name == "checkpoint_8"
    assert names(tmp_path) == ["checkpoint_2", "checkpoint_7", "checkpoint_8"]
    accelerator, _ = naming(tmp_path, iteration=20)
    assert accelerator.save_state().name == "checkpoint_20"


def test_project_dir_fills_a_configuration_that_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    project = ProjectConfiguration(automatic_checkpoint_naming=True)
    accelerator = Accelerator(cpu=True, project_dir="runs", project_config=project)
    assert (accelerator.project_dir, accelerator.logging_dir) == (f"{tmp_path}/runs", f"{tmp_path}/runs")
    assert accelerator.save_state() == tmp_path / "runs" / "checkpoints" / "checkpoint_0"
    release()
    project = ProjectConfiguration(tmp_path / "own", logging_dir="logs")
    accelerator = Accelerator(cpu=True, project_dir="runs", project_config=project)
    assert (accelerator.project_dir, accelerator.logging_dir) == (tmp_path / "own", f"{tmp_path}/logs")


def test_values_that_cannot_be_are_refused_together() -> None:
    with pytest.raises(ValueError, match=r"total_limit=0: expected .*; ProjectConfiguration: iteration=-1"):
        ProjectConfiguration(total_limit=0, iteration=-1)
    for limit in (True, 1.5, "2"):
        with pytest.raises(ValueError, match="total_limit"):
            ProjectConfiguration(total_limit=limit)  # type: ignore[arg-type] # the mistake
    with pytest.raises(ValueError, match=r"'SIGNAL'.*'TERM'"):
        Accelerator(cpu=True, project_config=ProjectConfiguration(stop_signals=("SIGNAL", "TERM")))


def test_a_checkpoint_that_is_not_there_is_refused_with_the_newest(tmp_path: Path) -> None:
    accelerator, _ = naming(tmp_path)
    saved = [accelerator.save_state(), *(accelerator.save_state(tmp_path / name) for name in "abcd")]
    for age, folder in enumerate(saved):
        os.utime(folder / MANIFEST, (age, age))
    with pytest.raises(CheckpointError) as error:
        accelerator.load_state(tmp_path / "e")
    listed = [f"    {folder}" for folder in reversed(saved[1:])]
    assert str(error.value).splitlines()[1:] == [
        f"  {tmp_path / 'e'} is not a folder; the newest checkpoints are:",
        *listed,
    ]
    with pytest.raises(CheckpointError, match=r"checkpoint_0$"):
        accelerator.load_state(tmp_path / "elsewhere" / "checkpoint_1")


def test_without_a_folder_there_is_nothing_to_save_to_or_to_load(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True)
    with pytest.raises(ValueError, match="save_state needs the path of a folder"):
        accelerator.save_state()
    with pytest.raises((ValueError, CheckpointError), match="there is no project_dir"):
        accelerator.load_state()
    with pytest.raises(CheckpointError, match="missing"):
        accelerator.load_state(tmp_path / "missing")
    release()
    project = ProjectConfiguration(automatic_checkpoint_naming=True)
    accelerator = Accelerator(cpu=True, project_config=project)
    with pytest.raises((ValueError, CheckpointError), match="there is no project_dir"):
        accelerator.save_state()
    accelerator, _ = naming(tmp_path)
    with pytest.raises(CheckpointError, match="there is no whole checkpoint in"):
        accelerator.load_state()


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def damaged(folder: Path, how: str) -> None:
    weights = folder / "model.safetensors"
    if how == "flipped":
        flip(weights)
    elif how == "cut":
        weights.write_bytes(weights.read_bytes()[:-5])
    elif how == "gone":
        weights.unlink()
    elif how == "manifest":
        flip(folder / "manifest.json")
    else:
        shutil.rmtree(folder)
        folder.mkdir()


@pytest.mark.parametrize("how", ["flipped", "cut", "gone", "manifest", "empty"])
def test_if_the_newest_is_damaged_the_one_before_is_loaded_and_named(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A path that is given is loaded, or it is an error."""
    accelerator, model = naming(tmp_path)
    for value in range(3):
        fill(model, value)
        newest = accelerator.save_state()
    damaged(newest, how)
    fill(model, 9.0)
    with pytest.raises(CheckpointError, match="checkpoint_2"):
        accelerator.load_state(newest)
    assert model.weight.unique().tolist() == [9.0]
    with caplog.at_level(logging.WARNING, logger="accel"):
        assert accelerator.load_state().name == "checkpoint_1"
    assert model.weight.unique().tolist() == [1.0]
    assert "checkpoint_2" in caplog.text, "it was passed over in silence"


def test_a_damaged_one_does_not_count_among_those_that_are_kept(tmp_path: Path) -> None:
    """T28."""
    accelerator, _ = naming(tmp_path, 2)
    accelerator.save_state()
    damaged(accelerator.save_state(), "cut")
    accelerator.save_state()
    assert names(tmp_path) == ["checkpoint_0", "checkpoint_1", "checkpoint_2"]


@pytest.mark.parametrize("place", [None, "cpu", "on_device"])
def test_map_location_may_say_where_to(place: str | None, tmp_path: Path) -> None:
    accelerator, model = naming(tmp_path)
    fill(model, 3.0)
    accelerator.save_state()
    fill(model, 4.0)
    accelerator.load_state(None, {"map_location": place})
    assert model.weight.unique().tolist() == [3.0]
    accelerator.load_state(map_location=place)
    with pytest.raises(TypeError, match="'somewhere'"):
        accelerator.load_state(map_location="somewhere")


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    accelerator, _ = naming(tmp_path)
    accelerator.project_configuration.automatic_checkpoint_naming = False
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("years")
    with pytest.raises(CheckpointError, match=r"files that are not of a checkpoint of accel \(thesis.tex\)"):
        accelerator.save_state(other)
    assert [one.name for one in tmp_path.rglob("*")] == ["other", "thesis.tex"]
    (tmp_path / "link").symlink_to(other)
    with pytest.raises(CheckpointError, match="a file or a link"):
        accelerator.save_state(tmp_path / "link")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert accelerator.save_state(empty) == empty


def test_what_was_put_beside_a_checkpoint_stays_when_it_is_replaced(tmp_path: Path) -> None:
    accelerator, model = naming(tmp_path)
    accelerator.project_configuration.automatic_checkpoint_naming = False
    folder = accelerator.save_state(tmp_path / "latest", max_shard_size="20B")
    shards = len(list(folder.glob("model-*")))
    assert shards > 1
    (folder / "notes").mkdir()
    (folder / "notes" / "one.txt").write_text("mine")
    (folder / "tokenizer.json").write_text("{}")
    fill(model, 5.0)
    assert accelerator.save_state(folder) == folder
    assert list(folder.glob("model-*")) == []
    assert (folder / "notes" / "one.txt").read_text() == "mine"
    assert (folder / "tokenizer.json").read_text() == "{}"
    fill(model, 6.0)
    accelerator.load_state(folder)
    assert model.weight.unique().tolist() == [5.0]
    assert [one.name for one in tmp_path.iterdir()] == ["latest"]


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("which", [1, 2])
def test_a_name_that_cannot_be_given_leaves_what_was_there(
    which: int, behind: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault test 5: an error of the disk at either of the two renames of a save that replaces a checkpoint."""
    accelerator, model = naming(tmp_path)
    accelerator.project_configuration.automatic_checkpoint_naming = False
    folder = accelerator.save_state(tmp_path / "latest")
    before = model.weight.detach().clone()
    fill(model, 5.0)
    rename, calls = Filesystem.rename, 0

    def fails(self: Filesystem, path: Path, to: Path) -> None:
        nonlocal calls
        calls += 1
        if calls == which:
            raise OSError(5, "Input/output error")
        rename(self, path, to)

    monkeypatch.setattr(Filesystem, "rename", fails)
    if behind:
        accelerator.save_state(folder, asynchronous=True)
    with pytest.raises(CheckpointError, match="Input/output error"):
        accelerator.wait_for_checkpoint() if behind else accelerator.save_state(folder)
    assert [one.name for one in tmp_path.iterdir()] == ["latest"], "a stage is left"
    accelerator.load_state(folder)
    assert model.weight.equal(before)


@pytest.mark.parametrize("by", ["load", "save"])
def test_a_checkpoint_that_lost_its_name_in_a_crash_has_it_again(by: str, tmp_path: Path) -> None:
    """T3: between the two renames of a save that takes the place of another one."""
    accelerator, model = naming(tmp_path)
    accelerator.project_configuration.automatic_checkpoint_naming = False
    fill(model, 5.0)
    folder = accelerator.save_state(tmp_path / "latest")
    stage, old = hidden_path(folder, "saving"), hidden_path(folder, "old")
    shutil.copytree(folder, stage)
    folder.rename(old)
    fill(model, 6.0)
    if by == "save":
        accelerator.save_state(tmp_path / "another")
    accelerator.load_state(folder)
    assert model.weight.unique().tolist() == [5.0]
    assert not old.exists()
    assert by == "load" or not stage.exists()


def test_a_load_goes_on_if_another_machine_restored_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a shared disk the first process of each machine tries it, and one of them is the first."""
    accelerator, model = naming(tmp_path)
    accelerator.project_configuration.automatic_checkpoint_naming = False
    folder = accelerator.save_state(tmp_path / "latest")
    folder.rename(hidden_path(folder, "old"))
    fill(model, 6.0)
    rename = Filesystem.rename

    def overtaken(self: Filesystem, path: Path, to: Path) -> None:
        rename(self, path, to)
        rename(self, path, to)

    monkeypatch.setattr(Filesystem, "rename", overtaken)
    accelerator.load_state(folder)
    assert model.weight.unique().tolist() != [6.0]


@pytest.mark.parametrize("each_machine", [False, True])
def test_an_interrupt_while_a_checkpoint_is_named_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, each_machine: bool
) -> None:
    """No hidden folder either, which this process would keep locked."""
    accelerator, _ = naming(tmp_path, save_on_each_node=each_machine)
    accelerator.save_state()
    rename = Filesystem.rename

    def interrupted(self: Filesystem, path: Path, to: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Filesystem, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        accelerator.save_state()
    assert names(tmp_path) == ["checkpoint_0"]
    monkeypatch.setattr(Filesystem, "rename", rename)
    accelerator.save_state()
    assert names(tmp_path) == ["checkpoint_0", "checkpoint_1"]


def on_each_node(folder: str) -> tuple[bool, str]:
    accelerator, _ = naming(folder, save_on_each_node=True)
    return bool(accelerator.is_local_main_process), accelerator.save_state().name


def test_one_machine_writes_one_checkpoint_also_when_each_does(world: MakePool, tmp_path: Path) -> None:
    assert world(2).run(on_each_node, str(tmp_path)) == [(True, "checkpoint_0"), (False, "checkpoint_0")]
    assert names(tmp_path) == ["checkpoint_0"]


def without_a_folder() -> None:
    Accelerator(cpu=True).load_state()


def test_all_ranks_hear_what_the_main_process_misses(world: MakePool) -> None:
    with pytest.raises(RankFailure) as failure:
        world(2).run(without_a_folder)
    assert len({str(error) for error in failure.value.errors.values()}) == 1
    assert len(failure.value.errors) == 2
