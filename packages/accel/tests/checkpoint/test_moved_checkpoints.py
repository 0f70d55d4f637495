"""Loads beside jobs that remove and replace checkpoints: another one is taken, and nothing is called damaged.

A job on another machine is stood in for by moves that ask for no lock.
"""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accel import Accelerator
from accel.checkpoint import load, verification
from accel.checkpoint.find import CheckpointFinder
from accel.checkpoint.load import StateLoader
from accel.checkpoint.loaded_checkpoint import LoadedCheckpoint
from accel.utils import ProjectConfiguration
from accel_checkpoint import CheckpointError, StagedCheckpoint
from accel_checkpoint.hidden_folder import hidden_path
from accel_checkpoint.retention import retain
from accel_state import release
from accel_testing import MakePool
from torch import nn


def naming(folder: Path, limit: int | None = None) -> tuple[Accelerator, Any]:
    release()
    project = ProjectConfiguration(folder, automatic_checkpoint_naming=True, total_limit=limit)
    accelerator = Accelerator(cpu=True, project_config=project)
    return accelerator, accelerator.prepare(nn.Linear(2, 2))


def fill(model: Any, value: float) -> None:
    with torch.no_grad():
        for weights in model.parameters():
            weights.fill_(value)


def numbers_of(model: Any) -> set[float]:
    return {value for weights in model.parameters() for value in weights.unique().tolist()}


def saved(folder: Path, *numbers: int) -> tuple[Accelerator, Any]:
    """A job that has saved these numbers, one after the other; its model has other numbers now."""
    accelerator, model = naming(folder)
    for number in numbers:
        fill(model, number)
        accelerator.save_state()
    fill(model, 99)
    return accelerator, model


def once(act: Callable[[], object], patched: pytest.MonkeyPatch, owner: type, name: str, *, after: bool) -> None:
    """Act once, before or after the first call of a method."""
    method, left = getattr(owner, name), [act]

    def wrapped(*given: Any, **named: Any) -> Any:
        if left and not after:
            left.pop()()
        result = method(*given, **named)
        if left and after:
            left.pop()()
        return result

    patched.setattr(owner, name, wrapped)


def rotate(folder: Path) -> None:
    """Another job keeps one checkpoint: 1 comes, 0 goes."""
    (folder / "checkpoints" / ".aside").rename(folder / "checkpoints" / "checkpoint_1")
    shutil.rmtree(folder / "checkpoints" / "checkpoint_0")


def before_rotation(folder: Path) -> tuple[Accelerator, Any]:
    accelerator, model = saved(folder, 0, 1)
    (folder / "checkpoints" / "checkpoint_1").rename(folder / "checkpoints" / ".aside")
    return accelerator, model


@pytest.mark.parametrize(
    ("owner", "name", "after"),
    [(CheckpointFinder, "chosen", True), (StateLoader, "_verified", False), (LoadedCheckpoint, "load_model", True)],
    ids=["listed", "locked", "loaded"],
)
@pytest.mark.parametrize("what", ["load_state", "resume"])
def test_a_listed_checkpoint_that_vanishes_gives_way_to_the_newer_one(
    owner: type,
    name: str,
    after: bool,
    what: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    accelerator, model = before_rotation(tmp_path)
    once(lambda: rotate(tmp_path), monkeypatch, owner, name, after=after)
    with caplog.at_level(logging.WARNING, "accel"):
        assert getattr(accelerator, what)() == tmp_path / "checkpoints" / "checkpoint_1"
    assert numbers_of(model) == {1.0}
    assert [record.getMessage() for record in caplog.records] == [
        "another job has removed or replaced a checkpoint while it was loaded: looking again"
    ]


def rank_that_misses(folder: Path) -> tuple[str, set[float], list[str]]:
    """Rank 1 comes to read when the checkpoint has gone, and rank 0 before that."""
    project = ProjectConfiguration(folder, automatic_checkpoint_naming=True)
    accelerator = Accelerator(cpu=True, project_config=project)
    model, words = accelerator.prepare(nn.Linear(2, 2)), list[str]()
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: words.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("accel").addHandler(handler)
    with pytest.MonkeyPatch.context() as patched:

        def miss() -> None:
            accelerator.wait_for_everyone()
            rotate(folder)

        if accelerator.process_index == 1:
            once(miss, patched, verification, "verify", after=False)  # type: ignore[arg-type] # a module
        else:
            once(accelerator.wait_for_everyone, patched, verification, "verify", after=True)  # type: ignore[arg-type]
        found = accelerator.resume()
    return str(found), numbers_of(model), [line for line in words if "looking" in line or "damaged" in line]


def test_ranks_take_the_same_checkpoint_if_only_some_have_missed_the_first(world: MakePool, tmp_path: Path) -> None:
    before_rotation(tmp_path)
    release()
    first, second = world(2).run(rank_that_misses, tmp_path)
    assert first[:2] == second[:2] == (str(tmp_path / "checkpoints" / "checkpoint_1"), {1.0})
    assert ["looking again" in line for line in first[2]] == [True]


def test_retention_of_another_job_leaves_a_checkpoint_that_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    accelerator, model = before_rotation(tmp_path)
    checkpoints = tmp_path / "checkpoints"

    def save_and_retain() -> None:
        (checkpoints / ".aside").rename(checkpoints / "checkpoint_1")
        assert retain(checkpoints, 1) == []

    once(save_and_retain, monkeypatch, CheckpointFinder, "chosen", after=True)
    assert accelerator.resume() == checkpoints / "checkpoint_0"
    assert numbers_of(model) == {0.0}
    assert caplog.records == []
    assert retain(checkpoints, 1) == [checkpoints / "checkpoint_0"]


def test_a_checkpoint_that_is_replaced_while_it_is_loaded_is_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerator = Accelerator(cpu=True)
    models = accelerator.prepare(nn.Linear(2, 2), nn.Linear(2, 2))
    for number in (2, 1):
        for model in models:
            fill(model, number)
        accelerator.save_state(tmp_path / ("last" if number == 1 else "next"))

    def replace() -> None:
        (tmp_path / "last").rename(tmp_path / "before")
        (tmp_path / "next").rename(tmp_path / "last")

    once(replace, monkeypatch, LoadedCheckpoint, "load_model", after=True)
    accelerator.load_state(tmp_path / "last")
    assert [numbers_of(model) for model in models] == [{2.0}, {2.0}]


def test_a_checkpoint_that_never_stays_ends_the_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accelerator, _ = saved(tmp_path, 0)
    verified, folder, tries = StateLoader._verified, tmp_path / "checkpoints" / "checkpoint_0", list[int]()

    def moved(self: StateLoader, *given: Any) -> Any:
        result = verified(self, *given)
        tries.append(1)
        shutil.copytree(folder, folder.with_name("aside"))
        shutil.rmtree(folder)
        folder.with_name("aside").rename(folder)
        return result

    monkeypatch.setattr(load, "ATTEMPTS", 3)
    monkeypatch.setattr(StateLoader, "_verified", moved)
    with pytest.raises(CheckpointError, match="another job has replaced it meanwhile"):
        accelerator.load_state()
    assert len(tries) == 3


@pytest.mark.parametrize("older", [True, False], ids=["older", "none older"])
def test_a_resume_takes_the_checkpoint_whose_replacement_was_cut_off(older: bool, tmp_path: Path) -> None:
    accelerator, model = saved(tmp_path, *range(2 if older else 1))
    newest = tmp_path / "checkpoints" / f"checkpoint_{int(older)}"
    newest.rename(hidden_path(newest, "old"))
    assert accelerator.resume() == newest
    assert numbers_of(model) == {float(older)}


def test_a_save_succeeds_if_another_jobs_retention_removes_it_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerator, model = naming(tmp_path, 1)
    checkpoint = tmp_path / "checkpoints" / "checkpoint_0"
    once(lambda: shutil.rmtree(checkpoint), monkeypatch, StagedCheckpoint, "commit", after=True)
    assert accelerator.save_state() == checkpoint
    assert accelerator.save_state() == checkpoint
    assert numbers_of(model) != {99.0}
    assert accelerator.load_state() == checkpoint
