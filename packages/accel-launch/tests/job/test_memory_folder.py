"""The folder for checkpoints in memory: where it is made, who has it, and what is left of it."""

import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from accel_checkpoint import Manifest, StagedCheckpoint, read_manifest
from accel_checkpoint.filesystem import identity_of
from accel_checkpoint.inspect import run as inspect
from accel_checkpoint.retention import list_checkpoints
from accel_launch.cli.launch_command import resolve_options
from accel_launch.job.job import Job, read_job
from accel_launch.job.job_runner import supervised
from accel_launch.memory.job_folder import end_dead_folders, job_folders, run_with_memory
from accel_launch.memory.rescue import in_memory_of
from accel_launch.report.job_result import JobResult, ProcessExit
from accel_state.environ import MEMORY_CHECKPOINTS

FAILED, DONE = JobResult(2, ProcessExit(0, 9, 3, ("x",))), JobResult(2)
#: makes a folder as a launcher does, says its name, and is killed when its input ends
DIES = """\
import os, pathlib, signal, sys
from accel_launch.memory.job_folder import make_folder
folder = pathlib.Path(sys.argv[1]) / f"accel-memory-{os.getpid()}"
lock = make_folder(folder)
print(folder, flush=True)
sys.stdin.read()
os.kill(os.getpid(), signal.SIGKILL)
"""
#: makes a folder as a launcher does, and is killed when its input ends, in a start or in a pause between two
WAITS = """\
import os, pathlib, signal, sys, tempfile
from accel_launch.memory.job_folder import make_folder
from accel_launch.supervise.orphan_killer import orphan_killer
_, place, inside = sys.argv
folder = pathlib.Path(place) / f"accel-memory-{os.getpid()}"
lock = make_folder(folder)
with orphan_killer(pathlib.Path(tempfile.mkdtemp()), str(folder)):
    print(folder, flush=True)
    if inside:
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGKILL)
sys.stdin.read()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder that a user names."""
    return tmp_path / "place"


def job(tmp_path: Path, *flags: str) -> Job:
    (tmp_path / "script.py").touch()
    return read_job(resolve_options(["--cpu", "-n", "2", *flags, str(tmp_path / "script.py")], {}))


def placed(tmp_path: Path, place: Path) -> Job:
    return job(tmp_path, "--memory_checkpoint_dir", str(place))


def run(
    job: Job,
    say: Callable[[str], None],
    body: Callable[[Job], object] = lambda mine: None,
    result: JobResult = DONE,
) -> None:
    """Run a job that does something in the place of processes."""

    def start(mine: Job) -> JobResult:
        body(mine)
        return result

    assert run_with_memory(job, start, say) is result


def folder_of(job: Job) -> Path:
    return Path(job.environ[MEMORY_CHECKPOINTS])


def save(checkpoints: Path, number: int, written: str = "2026-01-01T00:00:01+00:00") -> Path:
    """A checkpoint of a weight that is its number."""
    stage = StagedCheckpoint(checkpoints / f"checkpoint_{number}")
    stage.write_tensors("model.safetensors", {"weight": torch.full((3,), float(number))})
    stage.seal(Manifest({"written": written, "steps": number}, stage.files, {}, [], {}))
    stage.commit()
    return stage.target


def in_memory(folder: Path, project: Path, *numbers: int) -> Path:
    """Checkpoints of a project in the folder of a launcher."""
    project.mkdir(exist_ok=True)
    kept = folder / "of-the-project"
    kept.mkdir()
    for name in identity_of(project):
        (kept / name).touch()
    (kept / "project").symlink_to(project / "checkpoints")
    for number in numbers:
        save(kept / "checkpoints", number)
    return kept / "checkpoints"


def steps_of(project: Path) -> list[int]:
    return [read_manifest(path).moment[1] for _, path in list_checkpoints(project / "checkpoints")]


def dead_folder(place: Path) -> Path:
    """The folder of a launcher that was killed with all that it had started."""
    place.mkdir(exist_ok=True)
    command = [sys.executable, "-c", DIES, str(place)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        folder = Path(launcher.stdout.readline().strip())
        # as long as it lives, nobody touches it
        end_dead_folders(place, pytest.fail)
        assert folder.is_dir()
    return folder


def a_day_passes(folder: Path) -> None:
    """Let all in a folder be older than a day."""
    for path in folder.rglob("*"):
        os.utime(path, (time.time() - 24 * 3600 - 60,) * 2, follow_symlinks=False)


def test_the_folder_is_of_this_user_alone_and_gone_after_success(tmp_path: Path, place: Path) -> None:
    project = tmp_path / "project"

    def body(mine: Job) -> None:
        folder = folder_of(mine)
        assert folder.parent == place
        assert folder.stat().st_mode & 0o777 == 0o700
        in_memory(folder, project, 4)

    run(placed(tmp_path, place), pytest.fail, body)
    assert list(place.iterdir()) == []
    assert steps_of(project) == []


@pytest.mark.parametrize("told", [True, False])
def test_the_newest_is_on_the_disk_after_a_failure(told: bool, tmp_path: Path, place: Path) -> None:
    """Or if the launcher itself fails, or is interrupted."""
    project, said = tmp_path / "project", list[str]()

    def body(mine: Job) -> None:
        in_memory(folder_of(mine), project, 4, 9)
        if not told:
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        run(placed(tmp_path, place), said.append, body, FAILED)
    assert list(place.iterdir()) == []
    assert steps_of(project) == [9]
    assert said == [f"accel: the newest checkpoint in memory was moved to {project}/checkpoints/checkpoint_0"]


@pytest.mark.parametrize(("written", "left"), [("2025", [30, 9]), ("2027", [30])])
def test_a_disk_that_has_a_newer_one_gets_none(written: str, left: list[int], tmp_path: Path, place: Path) -> None:
    project, said = tmp_path / "project", list[str]()
    save(project / "checkpoints", 30, written)
    run(placed(tmp_path, place), said.append, lambda mine: in_memory(folder_of(mine), project, 9), FAILED)
    assert steps_of(project) == left
    assert len(said) == len(left) - 1


def test_a_damaged_checkpoint_in_memory_is_not_moved(tmp_path: Path, place: Path) -> None:
    project, said = tmp_path / "project", list[str]()

    def body(mine: Job) -> None:
        file = in_memory(folder_of(mine), project, 9) / "checkpoint_9" / "model.safetensors"
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)

    run(placed(tmp_path, place), said.append, body, FAILED)
    assert steps_of(project) == []
    assert list((project / "checkpoints").iterdir()) == []
    assert len(said) == 1
    assert "is damaged" in said[0]


def test_parts_of_which_other_machines_had_the_rest_are_said_to_be_lost(tmp_path: Path, place: Path) -> None:
    project, said = tmp_path / "project", list[str]()

    def body(mine: Job) -> None:
        (in_memory(folder_of(mine), project, 9) / "checkpoint_9" / "model.safetensors").unlink()

    run(placed(tmp_path, place), said.append, body, FAILED)
    assert list(place.iterdir()) == []
    assert said == [
        f"accel: the checkpoints of {project}/checkpoints in memory are lost, as none is whole on this machine"
    ]


def test_a_project_without_a_checkpoint_needs_no_words(tmp_path: Path, place: Path) -> None:
    def body(mine: Job) -> None:
        in_memory(folder_of(mine), tmp_path / "project").mkdir()

    run(placed(tmp_path, place), pytest.fail, body, FAILED)
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("another", [True, False])
def test_only_the_project_itself_gets_it_and_else_it_stays(another: bool, tmp_path: Path, place: Path) -> None:
    """Another container may have another project at the path, and a disk may be away for a while."""
    project, away, said = tmp_path / "project", tmp_path / "away", list[str]()
    dead = dead_folder(place)
    kept = in_memory(dead, project, 9)
    namespace, _ = identity_of(project)
    (kept.parent / namespace).rename(kept.parent / "mnt:[1]")
    project.rename(away)
    if another:
        project.mkdir()
    for _ in range(2):
        run(placed(tmp_path, place), said.append)
    assert steps_of(project) == []
    assert project.exists() is another
    assert len(said) == 2  # each launch tries again, and says where it is
    assert all(words.startswith("accel: the newest checkpoint in memory could not be moved") for words in said)
    assert all(f"it stays in {kept} for a day, and each launch on this machine tries again" in words for words in said)
    shutil.rmtree(project, ignore_errors=True)
    away.rename(project)
    end_dead_folders(place, said.append)
    assert steps_of(project) == [9]
    assert list(place.iterdir()) == []
    assert [path.name for path in project.iterdir()] == ["checkpoints"]


def test_a_disk_that_was_mounted_again_gets_it(tmp_path: Path, place: Path) -> None:
    project, said = tmp_path / "project", list[str]()

    def body(mine: Job) -> None:
        in_memory(folder_of(mine), project, 9)
        before = identity_of(project)
        project.rename(tmp_path / "before")
        project.mkdir()  # of another number
        assert identity_of(project) != before

    run(placed(tmp_path, place), said.append, body, FAILED)
    assert steps_of(project) == [9]
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("lacks", ["room", "package"])
def test_the_only_copy_stays_if_it_cannot_be_moved(
    lacks: str, tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, said, kept = tmp_path / "project", list[str](), list[Path]()

    def body(mine: Job) -> None:
        kept.append(in_memory(folder_of(mine), project, 9))
        a_day_passes(folder_of(mine))  # the job has hung
        if lacks == "package":
            monkeypatch.setitem(sys.modules, "accel_checkpoint.retention", None)
        else:
            (project / "checkpoints").touch()  # as a disk that refuses

    run(placed(tmp_path, place), said.append, body, FAILED)
    assert (kept[0] / "checkpoint_9").is_dir()
    assert (kept[0].parents[1] / ".ends").exists()  # others wait for its end, and count a day
    assert len(said) == 1
    assert f"it stays in {kept[0]} for a day, " in said[0]


def test_the_next_launcher_ends_the_folder_of_a_dead_one(tmp_path: Path, place: Path) -> None:
    project, said = tmp_path / "project", list[str]()
    dead = dead_folder(place)
    in_memory(dead, project, 4, 9)

    def body(mine: Job) -> None:
        assert not dead.exists()
        assert steps_of(project) == [9]

    run(placed(tmp_path, place), said.append, body)
    assert len(said) == 1


@pytest.mark.parametrize("inside", [True, False])
def test_a_launcher_that_is_killed_leaves_the_newest(inside: bool, tmp_path: Path, place: Path) -> None:
    """A process that outlives it moves the newest to the disk, and between two starts the next launch does."""
    command, said = [sys.executable, "-c", WAITS, str(place), "inside" if inside else ""], list[str]()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        folder = Path(launcher.stdout.readline().strip())
        in_memory(folder, tmp_path / "project", 4)
    if not inside:
        assert folder.exists()
        end_dead_folders(place, said.append)
    until = time.monotonic() + 60
    while folder.exists():
        assert time.monotonic() < until, "nobody has ended the folder"
        time.sleep(0.02)
    assert steps_of(tmp_path / "project") == [4]
    assert len(said) == (not inside)


def test_two_jobs_at_once_in_one_project_leave_each_other_alone(tmp_path: Path, place: Path) -> None:
    project, said = tmp_path / "project", list[str]()

    def other(mine: Job) -> None:
        assert len([*job_folders(place)]) == 2
        in_memory(folder_of(mine), project, 9)

    def body(mine: Job) -> None:
        in_memory(folder_of(mine), project, 4)
        run(placed(tmp_path, place), pytest.fail, other)
        assert [*job_folders(place)] == [folder_of(mine)]

    run(placed(tmp_path, place), said.append, body, FAILED)
    assert steps_of(project) == [4]


def test_only_folders_that_a_launcher_has_made_are_ended(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others stay, and those of other users are not looked at."""
    dead = dead_folder(place)
    (place / "accel-memory-no-mark").mkdir()
    (place / "accel-memory-file").touch()
    assert {*job_folders(place)} == {dead, place / "accel-memory-no-mark"}
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: 12345)
        assert [*job_folders(place)] == []
    end_dead_folders(place, pytest.fail)
    assert {path.name for path in place.iterdir()} == {"accel-memory-no-mark", "accel-memory-file"}


def test_checkpoints_in_memory_are_listed_with_those_of_the_disk(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project = tmp_path / "project"
    monkeypatch.setenv("ACCEL_MEMORY_CHECKPOINT_DIR", str(place))

    def body(mine: Job) -> None:
        in_memory(folder_of(mine), project, 4, 9)
        (folder_of(mine) / "of-a-start-that-ends" / "checkpoints").mkdir(parents=True)
        for disk in ([], [3]):
            for number in disk:
                save(project / "checkpoints", number)
            for path in (project, project / "checkpoints")[: 1 + len(disk)]:
                assert inspect("ls", path, [*in_memory_of(path)]) == 0
                listed = [line[:24].strip() for line in capsys.readouterr().out.splitlines()]
                on_disk = [f"checkpoint_{number}" for number in disk]
                assert listed == ["", *on_disk, "checkpoint_4 (memory)", "checkpoint_9 (memory)"]

    run(placed(tmp_path, place), pytest.fail, body)
    assert [*in_memory_of(project)] == []


@pytest.mark.parametrize("without", ["machine", "project"])
def test_a_day_later_nobody_is_waited_for(without: str, place: Path, tmp_path: Path) -> None:
    """Machines of one name may share a disk, and see no locks of each other; and a project may have been removed."""
    dead, project, said = dead_folder(place), tmp_path / "project", list[str]()
    in_memory(dead, project, 4)
    if without == "machine":
        (dead / ".of-a-launcher").write_text(f"{platform.node()}\nanother system")
    else:
        project.rmdir()
    end_dead_folders(place, said.append)
    assert dead.is_dir()
    a_day_passes(dead)
    end_dead_folders(place, said.append)
    assert not dead.exists()
    assert [*steps_of(project), len(said)] == ([4, 1] if without == "machine" else [2])


def test_memory_that_the_system_has_removed_is_made_again(tmp_path: Path, place: Path) -> None:
    project, said = tmp_path / "project", list[str]()

    def body(mine: Job) -> None:
        folder = folder_of(mine)
        shutil.rmtree(folder)
        with supervised(mine, pytest.fail, None, bound=False):  # type: ignore[arg-type] # nothing is started
            assert [*job_folders(place)] == [folder]
            end_after = subprocess.run(["flock", "-n", str(folder), "true"], check=False)
            assert end_after.returncode == 1
        in_memory(folder, project, 4)

    run(placed(tmp_path, place), said.append, body, FAILED)
    assert steps_of(project) == [4]
    assert list(place.iterdir()) == []
