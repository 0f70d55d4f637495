"""What save_state writes, at once and behind: readable by others, each thing once, and as it was at the call."""

import hashlib
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from accel import Accelerator
from accel_checkpoint import CheckpointError, Snapshot, encode, read_manifest
from accel_checkpoint.filesystem import Filesystem
from accel_testing import MakePool, RankFailure, stretched
from safetensors.torch import load_file
from torch import nn
from torch.optim import AdamW


class Tied(nn.Module):
    """A model whose output layer is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.output = nn.Linear(6, 11, bias=False)
        self.output.weight = self.embedding.weight


class Told(nn.Linear):
    """A model with a state that is no tensor."""

    said: Any = None

    def get_extra_state(self) -> Any:
        return self.said

    def set_extra_state(self, state: Any) -> None:
        self.said = state


def trained(accelerator: Accelerator, *models: nn.Module) -> Any:
    """The models and an optimizer of each, prepared, after a step."""
    optimizers = [AdamW([one for one in model.parameters() if one.requires_grad]) for model in models]
    ready: Any = accelerator.prepare(*models, *optimizers)
    loss: Any = sum(one.sum() for model in models for one in model.parameters() if one.requires_grad)
    accelerator.backward(loss)
    for optimizer in ready[len(models) :]:
        optimizer.step()
    return ready


def of_two_ranks(folder: str) -> None:
    accelerator = Accelerator(cpu=True)
    trained(accelerator, Tied(), nn.Linear(2, 2))
    accelerator.save_state(folder)


@pytest.mark.parametrize("size", [1, 2])
def test_weights_open_with_safetensors_alone_and_tied_ones_are_stored_once(
    size: int, world: MakePool, tmp_path: Path
) -> None:
    """T17: names are those of the model, without a prefix."""
    folder = tmp_path / "saved"
    world(size).run(of_two_ranks, str(folder))
    weights = load_file(folder / "model.safetensors")
    assert {name: tuple(one.shape) for name, one in weights.items()} == {"embedding.weight": (11, 6)}
    assert set(load_file(folder / "model_1.safetensors")) == {"weight", "bias"}
    moments = load_file(folder / "optimizer.safetensors")
    assert any("embedding.weight" in name and name.endswith("exp_avg") for name in moments)
    names = sorted(one.name for one in folder.iterdir())
    assert names == sorted([*read_manifest(folder).files, "manifest.json"])
    assert [one.name for one in tmp_path.iterdir()] == ["saved"]


def test_no_file_is_a_pickle(tmp_path: Path) -> None:
    """T12."""
    accelerator = Accelerator(cpu=True, mixed_precision="fp16")
    trained(accelerator, nn.Linear(4, 4))
    for path in accelerator.save_state(tmp_path / "saved").iterdir():
        content = path.read_bytes()
        assert not content.startswith((b"\x80", b"PK"))
        if path.suffix == ".json":
            json.loads(content.splitlines()[0])
        else:
            assert int.from_bytes(content[:8], "little") + 8 <= len(content)


def test_tied_weights_are_tied_after_a_load(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True)
    model, _ = trained(accelerator, Tied())
    before = model.output.weight.detach().clone()
    folder = accelerator.save_state(tmp_path / "saved")
    with torch.no_grad():
        model.output.weight.zero_()
    accelerator.load_state(folder)
    assert model.output.weight is model.embedding.weight
    assert model.embedding.weight.equal(before)


class Adapted(nn.Module):
    """A base of 1.2 MB that is not trained, and a little that is."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(1000, 300)
        self.base.requires_grad_(False)
        self.adapter = nn.Linear(300, 3)


def test_frozen_weights_are_linked_and_not_written_again_until_they_change(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True)
    model, optimizer = trained(accelerator, Adapted())
    folders = [tmp_path / str(number) for number in range(4)]
    accelerator.save_state(folders[0])
    (base,) = [one for one in folders[0].glob("model-*.safetensors") if "base.weight" in load_file(one)]
    assert set(load_file(base)) == {"base.weight", "base.bias"}
    with torch.no_grad():
        model.adapter.weight.zero_()
    accelerator.save_state(folders[1], asynchronous=True)
    accelerator.wait_for_checkpoint()
    inodes = [(folder / base.name).stat().st_ino for folder in folders[:2]]
    assert inodes[0] == inodes[1]
    with torch.no_grad():
        model.base.weight[7, 7] += 1
    accelerator.save_state(folders[2])
    assert (folders[2] / base.name).stat().st_ino != inodes[0]
    assert not load_file(folders[2] / base.name)["base.weight"].equal(load_file(base)["base.weight"])
    accelerator.load_state(folders[0])
    accelerator.save_state(folders[3])
    assert (folders[3] / base.name).stat().st_ino == inodes[0], "it goes on from what was loaded as well"
    accelerator.load_state(folders[2])
    assert model.base.weight.equal(load_file(folders[2] / base.name)["base.weight"])
    assert optimizer.state


def test_shards_have_an_index_and_load(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True)
    model, _ = trained(accelerator, nn.Sequential(*(nn.Linear(10, 10) for _ in range(4))))
    before = {name: one.clone() for name, one in model.state_dict().items()}
    folder = accelerator.save_state(tmp_path / "saved", max_shard_size="500B")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(before)
    assert len(set(index["weight_map"].values())) >= 4
    nn.init.zeros_(model[0].weight)
    accelerator.load_state(folder)
    assert all(model.state_dict()[name].equal(one) for name, one in before.items())


@pytest.mark.parametrize("said", [{"steps": [1, (2, 3.5)], "of": None}, torch.arange(3), "text"])
def test_extra_state_of_models_comes_back(said: Any, tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(Told(2, 2))
    model.said = said
    folder = accelerator.save_state(tmp_path / "saved")
    model.said = None
    accelerator.load_state(folder)
    assert torch.equal(model.said, said) if isinstance(said, torch.Tensor) else model.said == said


class Odd(nn.Linear):
    def __init__(self, buffer: torch.Tensor) -> None:
        super().__init__(2, 2)
        self.register_buffer("odd", buffer)


def of_an_odd_buffer(folder: str, kind: str) -> None:
    buffer = torch.ones(2, dtype=torch.complex128) if kind == "complex128" else torch.ones(2, 2).to_sparse()
    accelerator = Accelerator(cpu=True)
    accelerator.prepare(nn.Linear(2, 2))
    accelerator.prepare_model(Odd(buffer), evaluation_mode=True)
    accelerator.save_state(folder)


@pytest.mark.parametrize("kind", ["complex128", "sparse"])
def test_a_buffer_that_no_file_can_hold_is_named(kind: str, world: MakePool, tmp_path: Path) -> None:
    """Nothing is left of the save, and all ranks say the same."""
    with pytest.raises(RankFailure) as failure:
        world(2).run(of_an_odd_buffer, str(tmp_path / "saved"), kind)
    assert [type(error) for error in failure.value.errors.values()] == [CheckpointError] * 2
    assert all("odd" in str(error) for error in failure.value.errors.values())
    assert list(tmp_path.iterdir()) == []


def test_two_models_and_two_optimizers_go_on_each_from_its_own(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True)
    ready = trained(accelerator, nn.Linear(2, 2), nn.Linear(2, 2))
    ready[2].state[ready[0].weight]["exp_avg"].mul_(3)
    folder = accelerator.save_state(tmp_path / "saved")
    before = [json.dumps(encode(one.state_dict())) for one in ready]
    assert len(set(before)) == 4
    for model in ready[:2]:
        nn.init.zeros_(model.weight)
    for optimizer in ready[2:]:
        next(iter(optimizer.state.values()))["exp_avg"].zero_()
    accelerator.load_state(folder)
    assert [json.dumps(encode(one.state_dict())) for one in ready] == before


def test_a_size_that_is_none_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True)
    accelerator.prepare(nn.Linear(2, 2))
    with pytest.raises((ValueError, CheckpointError), match="10 bananas"):
        accelerator.save_state(tmp_path / "saved", max_shard_size="10 bananas")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A disk that takes as long for each file as it is told."""
    seconds = [0.1]
    write = Filesystem.write

    def slow(self: Filesystem, path: Path, content: Any) -> Any:
        time.sleep(seconds[0])
        return write(self, path, content)

    monkeypatch.setattr(Filesystem, "write", slow)
    return seconds


def hash_of(model: nn.Module) -> str:
    return hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in model.parameters())).hexdigest()


def test_what_is_written_behind_is_what_was_there_at_the_call(tmp_path: Path, slow_disk: list[float]) -> None:
    """T22: while the optimizer goes on, 20 times; in memory that is used again."""
    accelerator = Accelerator(cpu=True)
    model, optimizer = trained(accelerator, nn.Linear(100, 100))
    slow_disk[0] = 0.01
    hashes = []
    for number in range(20):
        hashes.append(hash_of(model))
        accelerator.save_state(tmp_path / str(number), asynchronous=True)
        for _ in range(5):
            optimizer.zero_grad()
            accelerator.backward(model(torch.ones(1, 100)).sum())
            optimizer.step()
    accelerator.end_training()
    for number, expected in enumerate(hashes):
        accelerator.load_state(tmp_path / str(number))
        assert hash_of(model) == expected


def test_weights_are_copied_once_for_a_save_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the snapshot, which alone can pin its memory for a GPU; parts of larger tensors are no exception."""
    accelerator, model, take = Accelerator(cpu=True), nn.Linear(3, 2), Snapshot.take
    model.weight = nn.Parameter(torch.arange(15.0).view(5, 3)[1:3])
    trained(accelerator, model)
    places = list[set[int]]()

    def noted(self: Snapshot, files: Any) -> Any:
        places.append({tensor.data_ptr() for tensor in files["model.safetensors"].values()})
        return take(self, files)

    monkeypatch.setattr(Snapshot, "take", noted)
    accelerator.save_state(tmp_path / "saved", asynchronous=True)
    accelerator.wait_for_checkpoint()
    assert places == [{parameter.data_ptr() for parameter in model.parameters()}]
    assert load_file(tmp_path / "saved" / "model.safetensors")["weight"].equal(model.weight)


def test_training_goes_on_during_a_save_and_the_next_save_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T22: back-pressure, one save at a time."""
    accelerator, written, write = Accelerator(cpu=True), threading.Event(), Filesystem.write

    def held(self: Filesystem, path: Path, content: Any) -> Any:
        assert written.wait(stretched(60))
        return write(self, path, content)

    monkeypatch.setattr(Filesystem, "write", held)
    trained(accelerator, nn.Linear(10, 10))
    accelerator.save_state(tmp_path / "0", asynchronous=True)
    assert not (tmp_path / "0").exists()
    threading.Timer(0.3, written.set).start()
    accelerator.save_state(tmp_path / "1", asynchronous=True)
    assert (tmp_path / "0" / "manifest.json").exists()
    accelerator.wait_for_checkpoint()
    assert (tmp_path / "1" / "manifest.json").exists()
    assert [one for one in threading.enumerate() if one.name == "accel-checkpoint"] == []


def test_memory_stays_what_it_was_over_50_saves(tmp_path: Path) -> None:
    """T22: 8 MB of state, copied into the same memory each time; nothing of a save is kept for the next."""
    accelerator = Accelerator(cpu=True)
    trained(accelerator, nn.Linear(800, 800))
    resident = []
    for _ in range(50):
        accelerator.save_state(tmp_path / "saved", asynchronous=True)
        accelerator.wait_for_checkpoint()
        resident.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4096)
    assert max(resident[10:]) - resident[9] < 8 << 20


@pytest.mark.parametrize("place", ["before the step", "after the step", "after zero_grad", "outside"])
def test_a_save_before_the_step_that_is_due_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    """The batches of the window count as served, and its gradients are in no checkpoint."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    raw = nn.Linear(2, 1)
    model, optimizer = accelerator.prepare(raw, torch.optim.SGD(raw.parameters(), lr=0.1))
    for _ in range(2):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.ones(1, 2)).sum())
            due = accelerator.sync_gradients
            if due and place == "before the step":
                accelerator.save_state(tmp_path / "saved")
            optimizer.step()
            if due and place == "after the step":
                accelerator.save_state(tmp_path / "saved")
            optimizer.zero_grad()
            if due and place == "after zero_grad":
                accelerator.save_state(tmp_path / "saved")
    if place == "outside":
        accelerator.save_state(tmp_path / "saved")
    warned = "before the optimizer step that is due" in caplog.text
    assert warned == (place == "before the step")
