"""What load_state goes on from, and what it refuses, with everything left as it was."""

import json
import os
import random
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch.distributed as dist
from accel import Accelerator, DataLoaderConfiguration
from accel.checkpoint import save_job, verification
from accel_checkpoint import CheckpointError, Manifest, encode, read_manifest
from accel_checkpoint.manifest import RANK_STATES
from accel_checkpoint.verify import VerifyResult, verify
from accel_state import release
from accel_testing import MakePool
from registered_objects import Box
from suite.toy_models import RangeDataset
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader

Change = Callable[[Manifest], Manifest]


class Crate(Box):
    pass


def rewritten(folder: Path, change: Change) -> None:
    """Changes the manifest of a checkpoint, with a hash that is right."""
    manifest = change(read_manifest(folder))
    (folder / "manifest.json").write_bytes(manifest.as_bytes())


def snapshot(accelerator: Accelerator, *objects: Any) -> str:
    """All that a load could change."""
    states = [one.state_dict() for one in objects]
    draws = torch.get_rng_state(), random.getstate(), numpy.random.get_state()
    return json.dumps(encode([states, draws, accelerator.gradient_state.steps]), sort_keys=True)


# What is here when the checkpoint is loaded; what was there when it was taken is `model`, `AdamW`, one Box, 12 samples.
def model(width: int = 3, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, width), nn.Linear(width, 3)).to(dtype)


def set_up(kind: str) -> tuple[Accelerator, list[Any]]:
    accelerator = Accelerator(cpu=True, mixed_precision="fp16" if kind in ("fp16", "scheduled") else "no")
    made: Any = model(4 if kind == "shapes" else 3, torch.float64 if kind == "dtype" else torch.float32)
    if kind == "names":
        made.add_module("2", nn.Linear(3, 3))
    parameters = list(made.parameters())
    groups = [{"params": parameters[:2]}, {"params": parameters[2:]}] if kind == "groups" else parameters
    optimizer: Optimizer = SGD(groups, lr=0.1) if kind == "class" else AdamW(groups)
    data: Any = DataLoader(RangeDataset(14 if kind == "dataset" else 12), 2, shuffle=True)
    prepared = list(accelerator.prepare(made, optimizer, data))
    if kind == "second optimizer":
        prepared.append(accelerator.prepare(AdamW(made.parameters())))
    if kind == "scheduled":
        prepared.append(accelerator.prepare(CosineAnnealingLR(optimizer, 9)))
    box = Crate(1) if kind == "object's class" else Box(1)
    if kind == "renamed":
        accelerator.register_for_checkpointing(other=box)
    elif kind != "missing":
        accelerator.register_for_checkpointing(box=box)
    if kind == "extra":
        accelerator.register_for_checkpointing(more=Box(2))
    return accelerator, [*prepared, box]


def saved(folder: str) -> None:
    accelerator, (made, optimizer, loader, box) = set_up("same")
    for batch in loader:
        accelerator.backward(made(batch.new_ones(2, 3, dtype=torch.float32)).sum())
        optimizer.step()
        optimizer.zero_grad()
        if accelerator.gradient_state.steps == 2:
            break
    box.value = 7
    accelerator.save_state(folder)


def refused(folder: str, kind: str) -> str:
    """What load_state says; nothing that it could change is changed."""
    accelerator, objects = set_up(kind)
    random.seed(5)
    numpy.random.seed(5)
    torch.manual_seed(5)
    before = snapshot(accelerator, *objects)
    try:
        accelerator.load_state(folder)
    except CheckpointError as error:
        assert snapshot(accelerator, *objects) == before, "something was changed"
        return str(error)
    raise AssertionError("it was loaded")


REFUSED = {
    "shapes": ["model: 0.weight is float32[3, 3] in the checkpoint, and float32[4, 3] in the model", "1.weight"],
    "dtype": ["float32[3, 3] in the checkpoint, and float64[3, 3] in the model"],
    "names": ["model: 2.weight is not in the checkpoint", "2.bias", "optimizer: no state was saved of model.2.bias"],
    "class": ["optimizer was of the class AdamW, and is of SGD"],
    "groups": ["optimizer: it has 2 parameter groups, and 1 were saved"],
    "second optimizer": ["optimizer_1 is not in the checkpoint"],
    "dataset": ["loader: "],
    "object's class": ["object:box was of the class Box, and is of Crate"],
    "renamed": ["object:other is not in the checkpoint", "object:box is in the checkpoint, and was not", "registered"],
    "missing": ["object:box is in the checkpoint, and was not prepared or registered here", "registered here: model"],
    "extra": ["object:more is not in the checkpoint", "in the checkpoint: model"],
    "fp16": ["scaler is not in the checkpoint"],
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_does_not_fit_is_refused_on_all_ranks_and_changes_nothing(
    kind: str, world: MakePool, tmp_path: Path
) -> None:
    job = world(2)
    job.run(saved, str(tmp_path / "saved"))
    first, second = world(2).run(refused, str(tmp_path / "saved"), kind)
    assert first == second
    for part in REFUSED[kind]:
        assert part in first


def refused_by_one(folder: str) -> str:
    accelerator, _ = set_up("same")
    if accelerator.process_index == 1:
        accelerator.register_for_checkpointing(another=Box(1), more=Box(2))
    try:
        accelerator.load_state(folder)
    except CheckpointError as error:
        return str(error)
    return ""


def test_all_that_any_rank_has_against_it_is_listed_on_all(world: MakePool, tmp_path: Path) -> None:
    world(2).run(saved, str(tmp_path / "saved"))
    first, second = world(2).run(refused_by_one, str(tmp_path / "saved"))
    assert first == second
    assert "rank 1: object:another is not in the checkpoint" in first
    assert "rank 1: object:more is not in the checkpoint" in first


def without(generator: str) -> Change:
    def change(manifest: Manifest) -> Manifest:
        ranks = [{"generators": {**manifest.ranks[0]["generators"]}}, *manifest.ranks[1:]]
        del ranks[0]["generators"][generator]
        return replace(manifest, ranks=ranks)

    return change


def with_another(generator: str, value: Any) -> Change:
    def change(manifest: Manifest) -> Manifest:
        generators = {**manifest.ranks[0]["generators"], generator: encode(value)}
        return replace(manifest, ranks=[{"generators": generators}, *manifest.ranks[1:]])

    return change


DAMAGED: dict[str, tuple[Change, str]] = {
    "no python": (without("python"), "'python' is missing"),
    "no torch": (without("torch"), "'torch' is missing"),
    "no numpy": (without("numpy"), "'numpy' is missing"),
    "nothing": (lambda manifest: replace(manifest, ranks=[{}, *manifest.ranks[1:]]), "generators"),
    "no rank": (lambda manifest: replace(manifest, ranks=[]), "generators"),
    "short torch": (with_another("torch", torch.zeros(7, dtype=torch.uint8)), "torch"),
    "text for torch": (with_another("torch", "text"), "torch"),
    "short python": (with_another("python", (3, (1, 2, 3), None)), "python"),
    "number for python": (with_another("python", 5), "python"),
    "short numpy": (with_another("numpy", ("MT19937", numpy.zeros(3, dtype=numpy.uint32), 0, 0, 0.0)), "numpy"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_generators_that_are_missing_or_damaged_are_refused_by_name(kind: str, world: MakePool, tmp_path: Path) -> None:
    """T27: by name, and before anything is changed; on all ranks, though it is one rank's."""
    change, named = DAMAGED[kind]
    world(2).run(saved, str(tmp_path / "saved"))
    rewritten(tmp_path / "saved", change)
    first, second = world(2).run(refused, str(tmp_path / "saved"), "same")
    assert first == second
    assert named in first


def draws_before_and_after(folder: str, ranks_in_manifest: int) -> tuple[list[float], list[float], int]:
    """Random numbers after a save, again after its load, and the bytes that the load has read of all ranks' states."""
    read, pread = list[int](), os.pread

    def noting(file: int, count: int, place: int) -> bytes:
        read.append(len(found := pread(file, count, place)))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(save_job, "RANKS_IN_MANIFEST", ranks_in_manifest)
        patch.setattr(os, "pread", noting)
        accelerator = Accelerator(cpu=True)
        accelerator.prepare(nn.Linear(2, 2))
        torch.manual_seed(accelerator.process_index)
        accelerator.save_state(folder)
        first = torch.rand(3).tolist()
        accelerator.load_state(folder)
        return first, torch.rand(3).tolist(), max(read, default=0)


def test_random_numbers_of_many_ranks_are_in_a_file_of_their_own(world: MakePool, tmp_path: Path) -> None:
    """Each rank reads its line, and not the 74 MB of 4,096 ranks."""
    ranks = world(2).run(draws_before_and_after, str(tmp_path / "apart"), 1)
    assert [after for _, after, _ in ranks] == [before for before, _, _ in ranks]
    assert ranks[0][0] != ranks[1][0]
    manifest = read_manifest(tmp_path / "apart")
    size = manifest.files[RANK_STATES].size
    assert (manifest.ranks, manifest.processes) == ([], 2)
    assert [read for _, _, read in ranks] == [size // 2] * 2
    assert json.loads((tmp_path / "apart" / "manifest.json").read_bytes().splitlines()[0])["version"] == 3
    world(2).run(draws_before_and_after, str(tmp_path / "together"), 2)
    assert len(read_manifest(tmp_path / "together").ranks) == 2


STATES: dict[str, Any] = {
    "none": None,
    "number": 5,
    "list": [],
    "empty": {},
    "lost tensor": {"$tensor": "nowhere"},
    "tag": {"$new": 1},
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", ["loader", "optimizer", "scheduler", "scaler", "clock"])
def test_an_item_that_is_damaged_is_refused_before_anything_is_changed(name: str, state: str, tmp_path: Path) -> None:
    """A state that is no state, in a manifest whose hash is right."""
    accelerator, _ = set_up("scheduled")
    folder = accelerator.save_state(tmp_path / "saved")
    items = read_manifest(folder).items
    items = {**items, name: {**items[name], "state": STATES[state]}}
    rewritten(folder, lambda manifest: replace(manifest, items=items))
    release()
    assert name in refused(str(folder), "scheduled")


class TwoParts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 5), nn.Linear(5, 2)


def stepped(accelerator: Accelerator, made: Any, optimizer: Any, steps: int = 3) -> list[Tensor]:
    for _ in range(steps):
        accelerator.backward(sum((one**2).sum() * place for place, one in enumerate(made.parameters(), start=1)))
        optimizer.step()
        optimizer.zero_grad()
    return [one.detach().clone() for one in made.parameters()]


def groups_of(made: TwoParts, order: int) -> list[dict[str, Any]]:
    first, second = list(made.first.parameters()), list(made.second.parameters())
    groups = [{"params": first[::order], "lr": 0.1}, {"params": second[::order], "lr": 0.01}]
    return groups[::order]


def test_the_state_of_an_optimizer_goes_by_the_names_of_its_parameters(tmp_path: Path) -> None:
    """Groups, and parameters in them, in another order than they had."""
    accelerator = Accelerator(cpu=True)
    made = TwoParts()
    ready = accelerator.prepare(made, AdamW(groups_of(made, 1)))
    stepped(accelerator, *ready)
    folder = accelerator.save_state(tmp_path / "saved")
    expected = stepped(accelerator, *ready)
    release()
    accelerator = Accelerator(cpu=True)
    made = TwoParts()
    ready = accelerator.prepare(made, AdamW(groups_of(made, -1)))
    accelerator.load_state(folder)
    assert [group["lr"] for group in ready[1].param_groups] == [0.01, 0.1]
    assert all(map(torch.equal, stepped(accelerator, *ready), expected))


def test_a_load_inside_of_a_window_begins_a_new_one(tmp_path: Path) -> None:
    """Gradients of the one that was left are gone, and so is its count of micro-batches."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    made = nn.Linear(1, 1, bias=False)
    ready: Any = accelerator.prepare(made, SGD(made.parameters(), lr=1.0))

    def batch() -> float:
        with accelerator.accumulate(ready[0]):
            accelerator.backward(ready[0](torch.ones(1, 1)).sum())
            ready[1].step()
            ready[1].zero_grad()
        return made.weight.item()

    before = made.weight.item()
    folder = accelerator.save_state(tmp_path / "saved")
    batch()
    accelerator.load_state(folder)
    assert [batch(), batch()] == [before, pytest.approx(before - 1)]


def test_resume_begins_anew_only_where_there_was_never_a_checkpoint(tmp_path: Path) -> None:
    """Not where all that are there are damaged."""
    accelerator = Accelerator(cpu=True, project_dir=tmp_path)
    accelerator.prepare(nn.Linear(1, 1))
    assert accelerator.resume() is None
    folder = accelerator.save_state(tmp_path / "checkpoints" / "checkpoint_0")
    assert accelerator.resume() == folder
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="checkpoint_0"):
        accelerator.resume()


@pytest.mark.parametrize(("door", "stateful", "left"), [("", False, 2), ("1", True, 2), ("1", False, 4)])
def test_a_program_for_accelerate_skips_what_a_loader_has_served(
    door: str, stateful: bool, left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless it asks for loaders that keep their position."""
    monkeypatch.setenv("ACCEL_AS_ACCELERATE", door)
    config = DataLoaderConfiguration(use_stateful_dataloader=stateful)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    loader = accelerator.prepare(DataLoader(RangeDataset(8), 2, shuffle=True))
    served: list[list[int]] = []
    for step, batch in enumerate(loader):
        served.append(batch.tolist())
        if step == 1:
            accelerator.save_state(str(tmp_path / "c"))
    accelerator.load_state(str(tmp_path / "c"))
    assert [batch.tolist() for batch in loader] == served[-left:]


def verified_files(folder: str, own_disks: bool) -> tuple[list[str], list[str]]:
    """What each of two processes on two machines verifies, and the exchanges of files."""
    rank, exchanged = dist.get_rank(), list[str]()
    places = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "GROUP_RANK": rank}
    os.environ.update({name: str(number) for name, number in places.items()})
    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(linear := nn.Linear(2, 2), AdamW(linear.parameters()))
    accelerator.backward(model(torch.ones(1, 2)).sum())
    optimizer.step()
    accelerator.save_state(folder)
    names = list[str]()

    def noting(folder: Path, manifest: Manifest, files: Iterable[str], *, keep: Collection[str]) -> VerifyResult:
        names.extend(files)
        return verify(folder, manifest, files, keep=keep)

    transport: Any = accelerator.run.transport
    recorder = transport.recorder
    begin = recorder.begin

    def beginning(what: str, *data: Any, **patient: Any) -> Any:
        exchanged.append(what)
        return begin(what, *data, **patient)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verification, "verify", noting)
        patch.setattr(recorder, "begin", beginning)
        if own_disks:
            patch.setattr(verification.SharedVerification, "disk", [rank, 0, 0])
        accelerator.load_state(folder)
    return names, [what for what in exchanged if what.startswith("load_state: files")]


def test_each_file_is_verified_once_for_each_disk(world: MakePool, tmp_path: Path) -> None:
    """Not once for each machine, if machines share the disk."""
    shared = world(2).run(verified_files, str(tmp_path / "shared"), False)
    every = sorted(read_manifest(tmp_path / "shared").files)
    assert len(every) > 1
    assert sorted([*shared[0][0], *shared[1][0]]) == every
    assert [exchanges for _, exchanges in shared] == [["load_state: files"]] * 2
    for names, exchanges in world(2).run(verified_files, str(tmp_path / "own"), True):
        assert sorted(names) == every
        assert exchanges == ["load_state: files", "load_state: files of each machine"]
