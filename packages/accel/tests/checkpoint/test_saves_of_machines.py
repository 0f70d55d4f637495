"""Checkpoints that each machine writes on a disk of its own: none is named unless all are whole."""

import errno
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch.distributed as dist
from accel import Accelerator
from accel.utils import ProjectConfiguration
from accel_checkpoint import AsyncWriter, CheckpointError, Snapshot
from accel_checkpoint.filesystem import Filesystem
from accel_comm.errors import PeerLost
from accel_testing import MakePool, RankFailure, stretched
from torch import nn


def on_a_machine_of_its_own(folder: str) -> Accelerator:
    """An Accelerator of a job with one process on each machine, which keeps one checkpoint."""
    rank, size = dist.get_rank(), dist.get_world_size()
    places = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "GROUP_RANK": rank}
    os.environ.update({name: str(number) for name, number in places.items()})
    project = ProjectConfiguration(
        f"{folder}/{rank}", automatic_checkpoint_naming=True, total_limit=1, save_on_each_node=True
    )
    accelerator = Accelerator(cpu=True, project_config=project)
    accelerator.prepare(nn.Linear(2, 2))
    return accelerator


def save(accelerator: Accelerator, *, asynchronous: bool = True) -> None:
    accelerator.save_state(asynchronous=asynchronous)
    accelerator.wait_for_checkpoint()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def refuse(*_: Any, **__: Any) -> NoReturn:
    raise OSError(errno.ENOSPC, "no space left")


FAILURES: dict[str, tuple[type, str]] = {
    "writing": (Filesystem, "write"),
    "copying": (Snapshot, "take"),
    "starting": (AsyncWriter, "begin"),
}


def fail_on_the_second_machine(folder: str, failure: str, asynchronous: bool) -> tuple[list[str], str, list[str]]:
    accelerator = on_a_machine_of_its_own(folder)
    own = Path(folder) / str(accelerator.process_index)
    save(accelerator)
    with pytest.MonkeyPatch.context() as patch:
        if accelerator.process_index == 1:
            owner, name = FAILURES[failure]
            patch.setattr(owner, name, refuse)
        with pytest.raises(CheckpointError) as error:
            save(accelerator, asynchronous=asynchronous)
    left = [name for name in names(own) if not name.startswith(".")]  # a thread may still remove a hidden folder
    save(accelerator)
    return left, str(error.value), names(own)


@pytest.mark.parametrize(("failure", "asynchronous"), [*((name, True) for name in FAILURES), ("writing", False)])
def test_no_machine_names_or_removes_a_checkpoint_if_another_fails(
    failure: str, asynchronous: bool, world: MakePool, tmp_path: Path
) -> None:
    """In the background too; the next save succeeds."""
    for left, error, newest in world(2).run(fail_on_the_second_machine, str(tmp_path), failure, asynchronous):
        assert left == ["checkpoint_0"]
        assert error.startswith("no checkpoint was written:\n  rank 1: ")
        assert "no space left" in error
        assert newest == ["checkpoint_1"]


def wait_for_the_second_machine(folder: str) -> list[bool]:
    """Whether this machine has named its checkpoint while the other machine still writes, and when both have."""
    accelerator = on_a_machine_of_its_own(folder)
    own, write, go_on = Path(folder) / str(accelerator.process_index), Filesystem.write, threading.Event()

    def held(self: Filesystem, path: Path, content: Any) -> Any:
        assert go_on.wait(stretched(60))
        return write(self, path, content)

    with pytest.MonkeyPatch.context() as patch:
        if accelerator.process_index == 1:
            patch.setattr(Filesystem, "write", held)
        accelerator.save_state(asynchronous=True)
        hidden = own / "checkpoints"
        while accelerator.process_index == 0 and not any(hidden.glob(".*/manifest.json")):
            assert not (hidden / "checkpoint_0").exists()
        accelerator.wait_for_everyone()
        time.sleep(0.3)  # for a name that must not come
        early = (hidden / "checkpoint_0").exists()
        accelerator.wait_for_everyone()
        go_on.set()
        accelerator.wait_for_checkpoint()
    return [early, (hidden / "checkpoint_0").exists()]


def test_a_machine_names_its_checkpoint_when_all_have_written_theirs(world: MakePool, tmp_path: Path) -> None:
    assert world(2).run(wait_for_the_second_machine, str(tmp_path)) == [[False, True]] * 2


def end_of_the_second_machine(folder: str) -> None:
    """It ends while it writes, and its processes cannot be looked at from here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("accel_comm.status_store.own_host", lambda: f"machine {dist.get_rank()}")
        accelerator = on_a_machine_of_its_own(folder)
        save(accelerator)
        if accelerator.process_index == 1:
            patch.setattr(Filesystem, "write", lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
        accelerator.save_state()


def test_a_machine_hears_in_a_save_that_another_has_ended(world: MakePool, tmp_path: Path) -> None:
    with pytest.raises(RankFailure) as raised:
        world(2).run(end_of_the_second_machine, str(tmp_path))
    assert isinstance(raised.value.errors[0], PeerLost), raised.value
    assert [names(tmp_path / rank)[-1] for rank in ("0", "1")] == ["checkpoint_0"] * 2
