"""Checkpoints in the memories of several machines: which is the newest, and how a machine gets what it lacks."""

import os
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from accel import Accelerator
from accel.checkpoint import machine_files
from accel.checkpoint.consensus import RankConsensus
from accel.checkpoint.machine_memories import MachineMemories
from accel.utils import ProjectConfiguration
from accel_checkpoint import CheckpointError, Manifest, StagedCheckpoint, read_manifest, verify
from accel_checkpoint.filesystem import Filesystem, file_sizes
from accel_checkpoint.retention import list_checkpoints
from accel_comm.transports import binomial_tree, point_to_point
from accel_state import release
from accel_testing import MakePool, RankFailure
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

OLD, NEW = ("2026-01-01T00:00:00", 5), ("2026-01-01T00:00:09", 10)


@pytest.mark.parametrize(
    ("disk", "memory", "found"),
    [
        ([], [], []),
        ([NEW], [OLD], ["d0", "m0"]),
        ([OLD], [NEW], ["m0", "d0"]),
        # one that was saved after what was kept in memory of the same step
        ([NEW], [NEW], ["d0", "m0"]),
        # those of the disk stay in the order of their numbers, whatever their times are
        ([NEW, OLD], [OLD, NEW], ["m1", "d1", "d0", "m0"]),
    ],
)
def test_the_newest_of_memory_and_disk_comes_first(
    disk: list[Any], memory: list[Any], found: list[str], tmp_path: Path
) -> None:
    """The moments of both are listed by number."""
    for place, moments in (("d", disk), ("m", memory)):
        for number, (written, steps) in enumerate(moments):
            stage = StagedCheckpoint(tmp_path / place / f"checkpoint_{number}")
            stage.seal(Manifest({"written": written, "steps": steps}, {}, {}, [], {}))
            stage.commit()
    release()
    processes = Accelerator(cpu=True).processes
    memories = MachineMemories(processes, RankConsensus(processes), tmp_path / "m")
    listed = memories.merged_with([path for _, path in reversed(list_checkpoints(tmp_path / "d"))])
    assert [f"{path.parent.name}{path.name[-1]}" for path in listed] == found


def on_machines(folder: str, strategy: str, each: int) -> tuple[Accelerator, Any, Any, Any]:
    """What a rank trains with whose machine has so many."""
    rank, size = dist.get_rank(), dist.get_world_size()
    machine = rank // each
    places = {"RANK": rank, "WORLD_SIZE": size, "GROUP_RANK": machine}
    places |= {"LOCAL_RANK": rank % each, "LOCAL_WORLD_SIZE": min(each, size - machine * each)}
    os.environ.update({name: str(number) for name, number in places.items()})
    memory = Path(folder) / f"memory-{machine}"
    memory.mkdir(exist_ok=True)
    os.environ["ACCEL_MEMORY_CHECKPOINTS"] = str(memory)
    project = ProjectConfiguration(Path(folder) / "project", memory_checkpoint_every=3)
    accelerator = Accelerator(cpu=True, project_config=project, strategy=strategy)
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(4, 9), nn.Linear(9, 1))
    data: Any = DataLoader(TensorDataset(torch.randn(160, 4)), batch_size=4)
    return accelerator, *accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=0.1), data)


def train(
    folder: str, lacks: int | None = None, strategy: str = "ddp", each: int = 1
) -> tuple[Path | None, tuple[str, ...], float]:
    """Resume, and train for eight steps.

    Returns:
        What was resumed, the checkpoints of this machine before the first step, and a sum of weights then.
    """
    if dist.get_rank() == lacks:
        for path in Path(folder).glob(f"memory-{lacks // each}/*"):
            Filesystem().remove(path)
    dist.barrier()
    accelerator, model, optimizer, loader = on_machines(folder, strategy, each)
    found = accelerator.resume()
    assert accelerator.checkpoints.memory is not None
    own = accelerator.checkpoints.memory.folder
    there = [path.name for _, path in list_checkpoints(own)]
    if found is not None:
        assert verify(found, read_manifest(found)).problems == []
    weights = sum(value.double().sum().item() for value in accelerator.get_state_dict(model).values())
    for (inputs,) in islice(loader, 8):
        accelerator.backward(model(inputs).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        accelerator.checkpoints.memory.wait()
    accelerator.end_training()
    return found, tuple(there), weights


@pytest.mark.parametrize("lacks", [0, 1, None])
def test_a_machine_gets_what_it_lacks_from_another(lacks: int | None, world: MakePool, tmp_path: Path) -> None:
    pool = world(2)
    assert {there for _, there, _ in pool.run(train, str(tmp_path), None)} == {()}
    found = pool.run(train, str(tmp_path), lacks)
    assert {path is not None and path.name for path, _, _ in found} == {"checkpoint_1"}
    assert [path is not None and path.parts[len(tmp_path.parts)] for path, _, _ in found] == ["memory-0", "memory-1"]
    assert len({weights for _, _, weights in found}) == 1
    whole = ("checkpoint_0", "checkpoint_1")
    assert [there for _, there, _ in found] == [whole if rank != lacks else ("checkpoint_1",) for rank in (0, 1)]


@pytest.mark.parametrize(("ranks", "each"), [(2, 1), (3, 1), (4, 2)])
def test_any_machine_of_a_sharded_model_may_go(ranks: int, each: int, world: MakePool, tmp_path: Path) -> None:
    """Another comes in its place, or the others go on without it."""
    job, kept = tmp_path / "job", tmp_path / "kept"
    job.mkdir()
    kept.mkdir()

    def weights_without(lost: int | None, count: int, *, replaced: bool = True) -> float:
        """The weights that a job resumes with that has lost what a machine had in memory."""
        for memory in job.glob("memory-*"):
            shutil.rmtree(memory)
        memories = [job / memory.name for memory in sorted(kept.iterdir())]
        for memory in memories:
            shutil.copytree(kept / memory.name, memory, symlinks=True)
        if lost is not None:
            shutil.rmtree(memories.pop(lost))
        for machine, memory in enumerate(memories if not replaced else ()):
            memory.rename(job / f"memory-{machine}")
        found = world(count).run(train, str(job), None, "fsdp2", each)
        assert {path is not None and path.name for path, _, _ in found} == {"checkpoint_1"}
        return found[0][-1]

    world(ranks).run(train, str(job), None, "fsdp2", each)
    for memory in job.glob("memory-*"):
        memory.rename(kept / memory.name)
    memories = sorted(kept.glob("memory-*/*/checkpoints/checkpoint_1"))
    manifests = [read_manifest(path) for path in memories]
    assert len({manifest.as_bytes() for manifest in manifests}) == 1
    for machine, path in enumerate(memories):
        own = [rank for rank in range(ranks) if (machine - rank // each) % len(memories) in (0, 1)]
        assert manifests[0].parts
        for parts in manifests[0].parts.values():
            assert [part for part in parts if (path / part).exists()] == [parts[rank] for rank in own]
    whole = weights_without(None, ranks)
    assert whole
    for lost in range(len(memories)):
        assert weights_without(lost, ranks) == whole
        assert weights_without(lost, ranks - each, replaced=False) == whole


def machine_with(folder: Path, names: list[str], lacks: list[str]) -> MachineMemories:
    """A machine that has a checkpoint in memory, but for some files."""
    stage = StagedCheckpoint(folder)
    for name in names:
        stage.write(name, [name.encode()])
    stage.seal(Manifest({"written": "2026", "steps": 3}, stage.files, {}, [], {"model": names[:2]}))
    stage.commit()
    for name in lacks:
        (folder / name).unlink()
    release()
    processes = Accelerator(cpu=True).processes
    return MachineMemories(processes, RankConsensus(processes), folder.parent)


def test_a_machine_gets_the_files_that_it_lacks_and_keeps_all_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files in folders too."""
    folder, asked = tmp_path / "checkpoint_0", list[Any]()
    memories = machine_with(folder, ["rank0", "rank1", "state", "inside/state"], ["rank0"])
    own = file_sizes(folder)
    other = {name: size for name, size in own.items() if name != "rank1"} | {"rank0": 5}
    memories._machines, memories._has = [0, 1, 2], {folder: {0: own, 1: other}}
    monkeypatch.setattr("accel.checkpoint.machine_memories.exchange_files", lambda *args: asked.append(args))
    memories.complete(folder)
    ((rank, routes, at, sizes),) = asked
    assert (rank, at) == (0, folder)
    assert sizes == own | other
    assert routes[:2] == [(1, 0, "rank0"), (0, 1, "rank1")]
    # one that is new gets all, and the manifest last
    assert {(source, name) for source, target, name in routes if target == 2} == {
        (1, "rank0"),
        *((0, name) for name in ("rank1", "state", "inside/state", "manifest.json")),
    }
    assert routes[-1] == (0, 2, "manifest.json")


def with_another_machine(memories: MachineMemories, monkeypatch: pytest.MonkeyPatch, **says: Any) -> list[str]:
    """Let another machine say something in each round, and return the rounds."""
    rounds = list[str]()

    def exchange(what: str, own: Any) -> list[Any]:
        rounds.append(what.removeprefix("resume: "))
        return [own, says.get(rounds[-1])]

    monkeypatch.setattr(memories._consensus, "exchange", exchange)
    return rounds


@pytest.mark.parametrize(("written", "needy"), [("2025", 1), ("2027", 0)])
def test_of_two_with_one_number_the_newer_counts(
    written: str, needy: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing is written into the older."""
    folder, asked, there = tmp_path / "checkpoint_0", list[Any](), list[bool]()
    memories = machine_with(folder, ["state"], [])
    with_another_machine(
        memories, monkeypatch, memory=[[[written, 5, 0, "another", 2, {"state": 5, "manifest.json": 9}]], []]
    )

    def exchange(rank: int, routes: list[Any], *_: Any) -> None:
        asked.extend(routes)
        there.append(folder.exists())

    monkeypatch.setattr("accel.checkpoint.machine_memories.exchange_files", exchange)
    for path in memories.merged_with([]):
        memories.complete(path)
    assert set(asked) == {(1 - needy, needy, name) for name in ("state", "manifest.json")}
    assert set(there) == {needy == 1}


@pytest.mark.parametrize("is_new", [True, False])
def test_a_bring_that_fails_leaves_what_was_there(
    is_new: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """There is room for an older one then, and no folder that is no checkpoint."""
    folder = tmp_path / "checkpoint_0"
    memories = machine_with(folder, ["rank0", "rank1"], ["rank1"])
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    if is_new:
        shutil.rmtree(folder)
    own = dict.fromkeys(before, 5)
    memories._machines, memories._has = (
        [0, 1],
        {folder: {1: own | {"rank1": 5}} if is_new else {0: own, 1: {"rank1": 5}}},
    )
    rounds = with_another_machine(memories, monkeypatch)

    def fail(rank: int, routes: list[Any], at: Path, sizes: Any) -> None:
        rounds.append("bring")
        at.mkdir(exist_ok=True)
        for name in [name for _, target, name in routes if target == rank]:
            (at / name).write_bytes(b"ha")
        raise CheckpointError("No space left on device")

    monkeypatch.setattr("accel.checkpoint.machine_memories.exchange_files", fail)
    memories.complete(folder)
    assert "No space left on device" in caplog.text
    left = {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else None
    assert left == (None if is_new else before)
    assert rounds == ["bring", "brought"]  # no rank of this machine reads it before


def test_one_of_which_a_file_is_lost_on_all_machines_does_not_count(tmp_path: Path) -> None:
    memories = machine_with(tmp_path / "checkpoint_0", ["rank0", "rank1"], ["rank0"])
    assert memories.merged_with([]) == []


def test_parts_that_no_machine_completes_go_as_new_ones_come(world: MakePool, tmp_path: Path) -> None:
    """Two of three machines are lost, and with them a part of each checkpoint."""
    world(3).run(train, str(tmp_path), None, "fsdp2")
    for machine in (1, 2):
        shutil.rmtree(tmp_path / f"memory-{machine}")
    ((found, there, _),) = world(1).run(train, str(tmp_path), None, "fsdp2")
    assert (found, there) == (None, ("checkpoint_0", "checkpoint_1"))
    (own,) = tmp_path.glob("memory-0/*/checkpoints")
    assert [path.name for _, path in list_checkpoints(own)] == ["checkpoint_2", "checkpoint_3"]


def train_without_room(folder: str) -> None:
    """The second machine lacks the checkpoint, and has no room for it."""

    def refuse(self: Filesystem, *_: Any) -> None:
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        if dist.get_rank() == 1:
            patch.setattr(Filesystem, "write", refuse)
        train(folder, 1)


def test_a_machine_without_room_is_told_on_all(world: MakePool, tmp_path: Path) -> None:
    pool = world(2)
    pool.run(train, str(tmp_path), None)
    with pytest.raises(RankFailure, match=r"rank 1: .*checkpoint_0 is not a folder") as caught:
        world(2).run(train_without_room, str(tmp_path))
    assert len(caught.value.errors) == 2


def resume_without_room_for_one(folder: str) -> tuple[Path | None, tuple[str, ...], float]:
    """The second machine lacks all, and has no room for the newest."""
    write = Filesystem.write

    def refuse(self: Filesystem, path: Path, content: Any) -> Any:
        if "checkpoint_1" in path.parent.name:
            raise OSError(28, "No space left on device")
        return write(self, path, content)

    with pytest.MonkeyPatch.context() as patch:
        if dist.get_rank() == 1:
            patch.setattr(Filesystem, "write", refuse)
        return train(folder, 1)


def test_an_older_one_is_loaded_if_the_newest_cannot_be_brought(world: MakePool, tmp_path: Path) -> None:
    world(2).run(train, str(tmp_path), None)
    found = world(2).run(resume_without_room_for_one, str(tmp_path))
    assert [path is not None and path.name for path, _, _ in found] == ["checkpoint_0"] * 2
    assert [there for _, there, _ in found] == [("checkpoint_0", "checkpoint_1"), ("checkpoint_0",)]


def exchange_with_a_file_that_is_gone(folder: str) -> list[tuple[bytes, bytes]]:
    """Exchange files of two messages and of none, of which a rank has lost one in the second round.

    Returns:
        What came in each round.
    """
    rank = dist.get_rank()
    path, other = Path(folder) / str(rank), 1 - rank
    path.mkdir()
    sizes = {f"{kind}{number}": size for kind, size in (("large", 1500), ("none", 0)) for number in (0, 1)}
    for name, size in sizes.items():
        if name.endswith(str(rank)):
            (path / name).write_bytes(b"x" * size)
    routes = [(source, 1 - source, f"{kind}{source}") for kind in ("large", "none") for source in (0, 1)]
    came = list[tuple[bytes, bytes]]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine_files, "PIECE", 1000)
        for _ in range(2):
            machine_files.exchange_files(rank, routes, path, sizes)
            came.append(((path / f"large{other}").read_bytes(), (path / f"none{other}").read_bytes()))
            if rank == 1:
                (path / "large1").unlink(missing_ok=True)
    return came


def test_no_machine_waits_for_a_file_that_is_gone(world: MakePool, tmp_path: Path) -> None:
    """It gets another content, which the verification finds."""
    first, second = world(2).run(exchange_with_a_file_that_is_gone, str(tmp_path), timeout_s=60)
    whole = (b"x" * 1500, b"")
    assert second == [whole, whole]
    assert first == [whole, (bytes(1500), b"")]


def test_messages_in_the_background_meet_no_others() -> None:
    assert machine_files.TAG >= point_to_point._FIRST_TAG + point_to_point._TAGS
    assert machine_files.TAG >= binomial_tree._FIRST_TAG + 2 * binomial_tree._TAGS


def save_without_room(folder: str, rank: int, part: str) -> None:
    """The machine of a rank has no room for a part."""
    write = Filesystem.write

    def refuse(self: Filesystem, path: Path, content: Any) -> Any:
        if part in str(path):
            raise OSError(28, "No space left on device")
        return write(self, path, content)

    with pytest.MonkeyPatch.context() as patch:
        if dist.get_rank() == rank:
            patch.setattr(Filesystem, "write", refuse)
        train(folder, None, "fsdp2")


def test_a_machine_without_room_for_the_part_of_another_keeps_none(world: MakePool, tmp_path: Path) -> None:
    """The training goes on, the first machine has both parts, and the second gets them when it resumes."""
    world(2).run(save_without_room, str(tmp_path), 1, "rank00000")
    (first, second) = sorted(tmp_path.glob("memory-*/*/checkpoints"))
    assert [path.name for _, path in list_checkpoints(first)] == ["checkpoint_0", "checkpoint_1"]
    assert list(second.iterdir()) == []
    found = world(2).run(train, str(tmp_path), None, "fsdp2")
    assert [there for _, there, _ in found] == [("checkpoint_0", "checkpoint_1"), ("checkpoint_1",)]


def test_all_ranks_hear_that_the_first_has_no_room(world: MakePool, tmp_path: Path) -> None:
    """It has none for its own part of the second checkpoint: no machine keeps that, and nobody waits for it."""
    world(2).run(save_without_room, str(tmp_path), 0, "checkpoint_1")
    for kept in tmp_path.glob("memory-*/*/checkpoints"):
        assert [path.name for path in kept.iterdir()] == ["checkpoint_0"]
