"""T3, T28: whatever happens in a save, the checkpoint before or the new one is there, whole, and nothing is left."""

import json
import random
import re
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import saving
import torch
from accel import Accelerator
from accel_checkpoint import CheckpointError, is_whole
from accel_testing import MakePool, RankFailure
from jobs import start
from saving import ROOM, Plan
from suite.soak import Cases
from torch import nn

SCRIPT = Path(saving.__file__)
KINDS = {"the newest": 1, "the newest three": 3, "one folder": 0}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 3 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)], capture_output=True)
    if done.returncode:
        pytest.skip(f"a disk of 3 MB cannot be mounted here: {done.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def whole(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir() if is_whole(one))


@pytest.mark.soak
@pytest.mark.grid(1)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_kill_in_a_save_leaves_the_state_before_or_the_new_one(
    kind: str, strategy: str, world: MakePool, tmp_path: Path, cases: Cases
) -> None:
    """T3, T28, fault tests 2 and 6: any of two ranks, at any moment, written at once and behind in turn."""
    plan = Plan(str(tmp_path), KINDS[kind], strategy=strategy)
    world(2).run(saving.save, replace(plan, saves=1))
    acknowledged = []
    for number in cases(2, 100):
        chance = random.Random(f"{kind} {number}")
        life = replace(plan, killed=chance.randrange(2), after_s=chance.uniform(0.0, 0.3))
        with pytest.raises(RankFailure, match="SIGKILL") as failure:
            world(2).run(saving.save, life)
        assert "AssertionError" not in str(failure.value), failure.value
        acknowledged.append(saving.acknowledged(tmp_path))
    found = world(2).run(saving.save, replace(plan, saves=1))
    assert found[0] == found[1]
    assert found[0][0] > 0
    _, left = found[0]
    assert [one for one in left if one.startswith(".")] == [], "what was cut off is collected by the next save"
    assert len(left) <= (plan.limit or 4)
    assert acknowledged == sorted(acknowledged)


@pytest.mark.soak
def test_a_single_process_that_is_killed_in_a_save_loses_nothing(world: MakePool, tmp_path: Path, cases: Cases) -> None:
    """T3, fault test 1."""
    plan = Plan(str(tmp_path), 1)
    world(1, join=False).run(saving.save, replace(plan, saves=1))
    for number in cases(2, 200):
        after_s = random.Random(number).uniform(0.0, 0.2)
        with pytest.raises(RankFailure, match="SIGKILL") as failure:
            world(1, join=False).run(saving.save, replace(plan, killed=0, after_s=after_s))
        assert "AssertionError" not in str(failure.value), failure.value
    ((loaded, left),) = world(1, join=False).run(saving.save, replace(plan, saves=1))
    assert loaded > 0
    assert len(left) == 1


@pytest.mark.grid(2)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("kind", ["the newest", "one folder"])
def test_a_full_disk_is_an_error_on_all_ranks_and_what_was_there_stays(
    kind: str, behind: bool, strategy: str, world: MakePool, tmp_path: Path
) -> None:
    """Fault tests 5 and 18: by RLIMIT_FSIZE; what fails behind is raised by the next call."""
    plan = Plan(str(tmp_path), KINDS[kind], behind=behind, full_at=2, strategy=strategy)
    with pytest.raises(RankFailure) as failure:
        world(2).run(saving.save, plan)
    assert {rank: type(error) for rank, error in failure.value.errors.items()} == {
        0: CheckpointError,
        1: CheckpointError,
    }
    for error in failure.value.errors.values():
        assert str(tmp_path) in str(error)
        assert re.search(r"no room: .*; the disk of \S+ has [\d,]+ of [\d,]+ bytes free", str(error)), error
    folder = tmp_path / "checkpoints" if plan.limit else tmp_path
    assert [one.name for one in folder.iterdir() if one.name.startswith(".")] == [], "the stage was left"
    assert whole(folder) == ["checkpoint_0" if plan.limit else "latest"]
    assert saving.begun(tmp_path) == (3 if behind else 2)
    found = world(2).run(saving.save, replace(plan, full_at=None, saves=1))
    assert [loaded for loaded, _ in found] == [1, 1]


def test_a_job_whose_disk_is_full_ends(small_disk: Path, forking_python: str) -> None:
    """T3: with the launcher, and a disk that is full; a step that is written behind."""
    plan = Plan(str(small_disk), 3, width=256, saves=50)
    job = start(SCRIPT, json.dumps(asdict(plan)), python=forking_python)
    done = job.end()
    assert done.code == 1, done.err
    assert done.left() == []
    assert re.search(rf"no room: .*; the disk of {small_disk}\S* has [\d,]+ of [\d,]+ bytes free", done.err), done.err
    checkpoints = small_disk / "checkpoints"
    assert whole(checkpoints), "the one before stays"
    assert len(whole(checkpoints)) == len(list(checkpoints.iterdir()))


def test_the_error_of_a_save_behind_is_the_exit_code_of_a_job_that_ends(tmp_path: Path, forking_python: str) -> None:
    """Fault test 18: without a call that could raise it."""
    file = tmp_path / "script.py"
    file.write_text(
        "import sys, torch\nfrom resource import RLIM_INFINITY, RLIMIT_FSIZE, setrlimit\n"
        "from accel import Accelerator\n"
        "accelerator = Accelerator(cpu=True)\nmodel = accelerator.prepare(torch.nn.Linear(500, 500))\n"
        f"setrlimit(RLIMIT_FSIZE, ({ROOM}, RLIM_INFINITY))\n"
        "accelerator.save_state(sys.argv[1], asynchronous=True)\nprint('went on', flush=True)\n"
    )
    done = start(file, tmp_path / "saved", python=forking_python).end()
    assert (done.code, done.out.count("went on")) == (1, 2), done.err
    assert "no room" in done.err
    assert [one.name for one in tmp_path.iterdir()] == ["script.py"]


def test_a_save_behind_is_on_the_disk_when_its_process_has_ended(tmp_path: Path, forking_python: str) -> None:
    """T22: of a script that does not wait for it, on a disk that takes its time; on each of two ranks."""
    file = tmp_path / "script.py"
    file.write_text(
        "import sys, time\nimport torch\nfrom accel import Accelerator\n"
        "from accel_checkpoint.filesystem import Filesystem\n"
        "write = Filesystem.write\n"
        "Filesystem.write = lambda *each: time.sleep(0.5) or write(*each)\n"
        "accelerator = Accelerator(cpu=True)\nmodel = torch.nn.Linear(500, 500)\n"
        "model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))\n"
        "accelerator.save_state(sys.argv[1], asynchronous=True)\nprint('went on', flush=True)\n"
    )
    done = start(file, tmp_path / "saved", python=forking_python).end()
    assert (done.code, done.out.count("went on")) == (0, 2), done.err
    assert is_whole(tmp_path / "saved")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["saved", "script.py"]


def into(folder: str) -> list[float]:
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(nn.Linear(2, 2))
    try:
        accelerator.save_state(folder)
    except CheckpointError as error:
        raise CheckpointError(f"{error} [{accelerator.reduce(torch.ones(1)).item():g} go on]") from None
    return [one.sum().item() for one in model.parameters()]


@pytest.mark.parametrize("where", ["file/inner", "file"])
def test_after_a_folder_that_cannot_be_made_training_may_go_on(where: str, world: MakePool, tmp_path: Path) -> None:
    """Fault test 5: a file lies where the folder, or the one above it, would be."""
    (tmp_path / "file").write_text("of somebody")
    with pytest.raises(RankFailure) as failure:
        world(2).run(into, str(tmp_path / where))
    assert [type(error) for error in failure.value.errors.values()] == [CheckpointError] * 2
    assert all(str(tmp_path / where) in str(error) for error in failure.value.errors.values())
    assert all("[2 go on]" in str(error) for error in failure.value.errors.values())
    assert (tmp_path / "file").read_text() == "of somebody"
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_may_only_be_read_is_an_error_on_all_ranks(world: MakePool, small_disk: Path) -> None:
    """Fault test 5: root may write anywhere but on a disk that is mounted to be read."""
    world(2).run(into, str(small_disk / "saved"))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(RankFailure) as failure:
        world(2).run(into, str(small_disk / "saved"))
    assert [type(error) for error in failure.value.errors.values()] == [CheckpointError] * 2
    assert all("Read-only file system" in str(error) for error in failure.value.errors.values())
    assert [one.name for one in small_disk.iterdir()] == ["saved"]
    assert is_whole(small_disk / "saved")
