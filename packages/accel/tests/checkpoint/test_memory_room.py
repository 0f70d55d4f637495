"""The room for checkpoints in memory: what is needed, and what a tmpfs and a disk have."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from accel import Accelerator
from accel.checkpoint.consensus import RankConsensus
from accel.checkpoint.memory_room import room_for
from accel_checkpoint import CheckpointError
from accel_checkpoint.filesystem import identity_of
from accel_state import release
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

MB = 10**6


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tmpfs that a user has mounted."""
    mounted(monkeypatch, {"/": "ext4", str(tmp_path): "tmpfs"})


def mounted(monkeypatch: pytest.MonkeyPatch, kinds: dict[str, str]) -> None:
    """Let the system have these mounts."""
    mounts = [SimpleNamespace(mountpoint=place, fstype=kind) for place, kind in kinds.items()]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounts)


def system_of(folder: Path, available: int) -> Path:
    """What a system says that has so much memory."""
    made = folder.parent / "proc"
    made.mkdir()
    (made / "meminfo").write_text(f"MemTotal: 9999999 kB\nMemAvailable: {available // 1024} kB\n")
    return folder.parent


def lacks_room(folder: Path, size: int, system: Path) -> bool:
    try:
        room_for(folder, size, 3 * size, root=system)
    except CheckpointError:
        return True
    return False


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "memory"
    made.mkdir()
    return made


def test_memory_has_room_for_all_and_for_the_copy_of_the_processes(folder: Path) -> None:
    system = system_of(folder, 4 * MB)
    assert not lacks_room(folder, MB - 2000, system)
    assert lacks_room(folder, MB + 2000, system)


@pytest.mark.parametrize("version", [1, 2])
def test_memory_is_what_the_control_group_leaves(version: int, folder: Path) -> None:
    system = system_of(folder, 100 * MB)
    group = system / "sys/fs/cgroup" / ("memory/job" if version == 1 else "job")
    group.mkdir(parents=True)
    (system / "proc/self").mkdir()
    (system / "proc/self/cgroup").write_text("5:memory:/job\n" if version == 1 else "0::/job\n")
    names = ("limit_in_bytes", "usage_in_bytes") if version == 1 else ("max", "current")
    for name, size in zip(names, (7 * MB, 3 * MB), strict=True):
        (group / f"memory.{name}").write_text(f"{size}\n")
    assert "where 3.0 MB are free" in room_for(folder, MB, 3 * MB, root=system)


def test_checkpoints_that_are_there_already_need_no_more_room(folder: Path) -> None:
    system = system_of(folder, 2 * MB + 4096)
    (folder / "one").write_bytes(bytes(2 * MB))
    assert not lacks_room(folder, MB, system)
    assert lacks_room(folder, 2 * MB, system)


def test_a_disk_is_not_limited_by_the_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted(monkeypatch, {"/": "ext4", str(folder.parent): "tmpfs", str(folder): "xfs"})
    system = system_of(folder, 0)
    assert not lacks_room(folder, MB, system)
    assert lacks_room(folder, shutil.disk_usage(folder).total, system)


def test_too_little_room_is_told_in_words(folder: Path) -> None:
    words = f"have 600.0 MB each on this machine, and need 1.8 GB in {folder}, where 400.0 MB are free: name a folder"
    with pytest.raises(CheckpointError, match=words):
        room_for(folder, 600 * MB, 1800 * MB, root=system_of(folder, 1000 * MB))


@pytest.mark.parametrize("before", [True, False])
def test_memory_that_goes_away_is_told_once_and_made_by_no_worker(
    before: bool, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The launcher makes its folder anew, and not a worker, for which nobody would remove it."""
    monkeypatch.setenv("ACCEL_MEMORY_CHECKPOINTS", str(folder))
    monkeypatch.setenv("ACCEL_MEMORY_CHECKPOINT_EVERY", "2")
    if before:
        folder.rmdir()
    release()
    accelerator = Accelerator(cpu=True, project_dir=folder.parent / "project")
    model: Any = nn.Linear(1, 1)
    optimizer: Any = torch.optim.SGD(model.parameters())
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(TensorDataset(torch.ones(12, 1))))
    accelerator.resume()
    kept: Any = accelerator.checkpoints.memory
    exchange, asked = RankConsensus.exchange, list[str]()

    def noted(consensus: RankConsensus, what: str, statement: Any) -> list[Any]:
        asked.append(what)
        return exchange(consensus, what, statement)

    monkeypatch.setattr(RankConsensus, "exchange", noted)
    for step, (inputs,) in enumerate(loader):
        accelerator.backward(model(inputs).mean())
        optimizer.step()
        kept.wait()
        if step == 5 and not before:
            shutil.rmtree(folder)
    assert not folder.exists()
    assert asked.count("checkpoint in memory: due") <= 6  # every second step, and not every one
    assert len([record for record in caplog.records if "is gone, as systems" in record.getMessage()]) == 1


def test_a_folder_whose_room_cannot_be_asked_for_is_told_to_all(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As any problem of one rank is, before the others wait for it."""
    monkeypatch.setenv("ACCEL_MEMORY_CHECKPOINTS", str(folder))
    monkeypatch.setenv("ACCEL_MEMORY_CHECKPOINT_EVERY", "2")

    def fail(*_: object) -> None:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr("accel.checkpoint.memory.room_for", fail)
    release()
    accelerator = Accelerator(cpu=True, project_dir=folder.parent / "project")
    model: Any = nn.Linear(1, 1)
    optimizer: Any = torch.optim.SGD(model.parameters())
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(TensorDataset(torch.ones(12, 1))))
    accelerator.resume()

    def train() -> None:
        for (inputs,) in loader:
            accelerator.backward(model(inputs).mean())
            optimizer.step()

    with pytest.raises(SystemExit):
        train()
    assert [record.getMessage() for record in caplog.records if "Stale file handle" in record.getMessage()]


def test_a_project_whose_disk_was_mounted_again_finds_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, project = tmp_path / "of-the-launcher", tmp_path / "project"
    memory.mkdir()
    monkeypatch.setenv("ACCEL_MEMORY_CHECKPOINTS", str(memory))
    monkeypatch.setenv("ACCEL_MEMORY_CHECKPOINT_EVERY", "2")
    release()
    Accelerator(cpu=True, project_dir=project)
    [kept] = memory.iterdir()
    before = {path.name for path in kept.iterdir()}
    project.rename(tmp_path / "away")
    release()
    Accelerator(cpu=True, project_dir=project)
    assert list(memory.iterdir()) == [kept]
    assert {path.name for path in kept.iterdir()} == {*before, *identity_of(project)} != before
