import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch
from accel_checkpoint import CheckpointError, load_checkpoint_in_model, save_weights
from accel_checkpoint.filesystem import Filesystem
from accel_testing import assert_same_numbers
from safetensors.torch import load_file
from saved_files import model
from torch import nn


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_safetensors_is_the_default_and_other_programs_read_it(tmp_path: Path) -> None:
    """Feature row S88, decision 6: the keys are those of the base model."""
    state = model().state_dict()
    path = save_weights(state, tmp_path / "new" / "folder")
    assert path == tmp_path / "new" / "folder" / "model.safetensors"
    assert names(path.parent) == ["model.safetensors"]
    read = load_file(path)
    assert sorted(read) == sorted(state)
    fresh = model(seed=1)
    fresh.load_state_dict(read, strict=True)
    assert_same_numbers(fresh.state_dict(), state, atol=0)


def test_the_other_format_is_read_by_torch_and_updates_the_same_model(tmp_path: Path) -> None:
    """Feature row S90: `load_state_dict(torch.load(dir / "pytorch_model.bin"))` writes into the same tensors."""
    state = model().state_dict()
    path = save_weights(state, tmp_path, safe_serialization=False)
    assert path == tmp_path / "pytorch_model.bin"
    base = model(seed=1)
    wrapped, x = nn.Sequential(base), torch.ones(2, 8)
    before = wrapped(x)
    base.load_state_dict(torch.load(path))
    assert_same_numbers(wrapped(x), model()(x), atol=0)
    assert not torch.equal(wrapped(x), before)


@pytest.mark.parametrize(
    ("safe", "file"), [(True, "model-{}-of-00003.safetensors"), (False, "pytorch_model-{}-of-00003.bin")]
)
def test_small_shards_give_three_files_and_an_index(tmp_path: Path, safe: bool, file: str) -> None:
    """Feature row S89: 500 bytes on a model of 1.3 KB; the other two fit exactly."""
    path = save_weights(model().state_dict(), tmp_path, max_shard_size=500, safe_serialization=safe)
    shards = [file.format(f"{number:05d}") for number in (1, 2, 3)]
    index = ("model.safetensors" if safe else "pytorch_model.bin") + ".index.json"
    assert names(tmp_path) == sorted([*shards, index])
    assert path == tmp_path / index
    assert json.loads(path.read_text()) == {
        "metadata": {"total_size": 1364},
        "weight_map": {
            "first.weight": shards[0],
            "first.bias": shards[1],
            "second.weight": shards[2],
            "second.bias": shards[2],
        },
    }


def test_a_size_may_be_text(tmp_path: Path) -> None:
    """Feature row S89."""
    assert save_weights(model().state_dict(), tmp_path, max_shard_size="0.5KB").name == "model.safetensors.index.json"
    with pytest.raises(ValueError, match="size 'large': expected a number of bytes"):
        save_weights(model().state_dict(), tmp_path, max_shard_size="large")


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("size", [100, "10GB"])
def test_views_and_tensors_out_of_order_are_saved_by_value_and_size(tmp_path: Path, safe: bool, size: Any) -> None:
    base = torch.arange(40000.0).view(200, 200)
    state = {
        "crossed": base[:5, :5].t(),
        "row": base[3, :7],
        "flat": base[:2].reshape(-1)[:9],
        "wide": torch.ones(1).expand(4),
        "none": torch.zeros(0, 3),
        "number": torch.tensor(7),
        "whole": (whole := torch.arange(6.0)),
        "shaped": whole.view(2, 3),
        "halves": torch.ones(3, dtype=torch.bfloat16),
    }
    save_weights(state, tmp_path, max_shard_size=size, safe_serialization=safe)
    fresh = nn.Module()
    for name, tensor in state.items():
        fresh.register_buffer(name, torch.full(tensor.shape, 9, dtype=tensor.dtype))
    load_checkpoint_in_model(fresh, tmp_path, strict=True)
    assert_same_numbers(fresh.state_dict(), state, atol=0)
    # not the 160,000 bytes behind the views
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 20_000


def test_pickled_weights_are_plain_cpu_tensors_with_their_own_memory(tmp_path: Path, device: torch.device) -> None:
    base, wave = torch.arange(4.0, device=device).view(2, 2), torch.tensor([1 + 2j], device=device)
    views = {"flat": base.view(-1), "crossed": base.t(), "row": base[1], "wide": base[:1].expand(3, 2)}
    state = {**views, "bits": base.view(torch.int32), "conjugate": wave.conj(), "negative": wave.conj().imag}
    read = torch.load(save_weights(state, tmp_path, safe_serialization=False))
    assert list(read) == list(state)
    for name, tensor in read.items():
        assert torch.equal(tensor, state[name].cpu()), name
        assert tensor.is_contiguous()
        assert not any((tensor.is_conj(), tensor.is_neg()))
        assert tensor.device.type == "cpu"
        assert tensor.untyped_storage().nbytes() == tensor.nbytes, "the memory behind the view is written too"


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("before", [500, "1GB"])
@pytest.mark.parametrize("now", [500, 800, "1GB"])
def test_files_of_an_earlier_save_in_this_format_are_gone(tmp_path: Path, safe: bool, before: Any, now: Any) -> None:
    save_weights(model(1).state_dict(), tmp_path, max_shard_size=before, safe_serialization=safe)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors.bak").write_text("mine")
    save_weights(model(2).state_dict(), tmp_path, max_shard_size=now, safe_serialization=safe)
    alone = tmp_path / "alone"
    save_weights(model(2).state_dict(), alone, max_shard_size=now, safe_serialization=safe)
    assert names(tmp_path) == sorted([*names(alone), "alone", "config.json", "model.safetensors.bak"])
    fresh = model(3)
    load_checkpoint_in_model(fresh, tmp_path, strict=True)
    assert_same_numbers(fresh.state_dict(), model(2).state_dict(), atol=0)


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("before", [500, "1GB"])
@pytest.mark.parametrize("now", [800, "1GB"])
def test_weights_in_the_other_format_stay(tmp_path: Path, safe: bool, before: Any, now: Any) -> None:
    save_weights(model(1).state_dict(), tmp_path, max_shard_size=before, safe_serialization=not safe)
    other = contents(tmp_path)
    save_weights(model(2).state_dict(), tmp_path, max_shard_size=now, safe_serialization=safe)
    assert other.items() < contents(tmp_path).items()


class Failing(Filesystem):
    """Writes half of its file number `at`, and raises."""

    def __init__(self, at: int) -> None:
        self.at = at

    @contextmanager
    def create(self, path: Path) -> Iterator[BinaryIO]:
        self.at -= 1
        with super().create(path) as file:
            yield file
            if self.at == 0:
                file.truncate(100)
                raise OSError(28, "No space left on device")


@pytest.mark.parametrize("size", [500, "1GB"])
@pytest.mark.parametrize(("safe", "at"), [(True, 1), (True, 2), (True, 3), (False, 1), (False, 2), (False, 3)])
def test_a_save_that_fails_midway_leaves_the_old_files_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, safe: bool, at: int, size: Any
) -> None:
    """Feature row S89, rule 14: the old checkpoint is whole, though the new one has files of the same names."""
    save_weights(model(1).state_dict(), tmp_path, max_shard_size=size, safe_serialization=safe)
    before = contents(tmp_path)
    monkeypatch.setattr("accel_checkpoint.atomic_write.Filesystem", partial(Failing, at))
    with pytest.raises(OSError, match="No space left"):
        save_weights(model(2).state_dict(), tmp_path, max_shard_size=200, safe_serialization=safe)
    assert contents(tmp_path) == before


def test_a_save_writes_shards_then_the_index_and_removes_old_files_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_weights(model(1).state_dict(), tmp_path)
    happened: list[str] = []
    replace, unlink = Path.replace, Path.unlink

    def renamed(path: Path, target: Path) -> Path:
        happened.append(target.name)
        return replace(path, target)

    def removed(path: Path, missing_ok: bool = False) -> None:
        happened.append(f"no {path.name}")
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "replace", renamed)
    monkeypatch.setattr(Path, "unlink", removed)
    save_weights(model(2).state_dict(), tmp_path, max_shard_size=800)
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    assert happened == [first, second, "model.safetensors.index.json", "no model.safetensors"]


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("before", [500, 800, "1GB"])
@pytest.mark.parametrize("now", [500, 800, "1GB"])
@pytest.mark.parametrize("call", ["replace", "unlink"])
@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_save_that_fails_while_it_gives_names_leaves_no_mixture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, safe: bool, before: Any, now: Any, call: str, at: int
) -> None:
    """Rule 14: what loads afterwards is the old weights or the new ones, from the folder and from each index."""
    save_weights(model(1).state_dict(), tmp_path, max_shard_size=before, safe_serialization=safe)
    calls: list[int] = []
    real = vars(Path)[call]

    def failing_once(path: Path, *rest: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == at:
            raise OSError(5, "Input/output error")
        return real(path, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, call, failing_once)
        try:
            save_weights(model(2).state_dict(), tmp_path, max_shard_size=now, safe_serialization=safe)
        except OSError:
            assert len(calls) >= at
    for opens in (tmp_path, *tmp_path.glob("*.index.json")):
        fresh = model(3)
        try:
            load_checkpoint_in_model(fresh, opens, strict=True)
        except CheckpointError:
            continue
        first = fresh.state_dict()["first.weight"]
        whole = model(1) if torch.equal(first, model(1).state_dict()["first.weight"]) else model(2)
        assert_same_numbers(fresh.state_dict(), whole.state_dict(), atol=0)
    assert not list(tmp_path.glob(".*.partial"))
    save_weights(model(4).state_dict(), tmp_path, max_shard_size=now, safe_serialization=safe)
    load_checkpoint_in_model(fresh, tmp_path, strict=True)
    assert_same_numbers(fresh.state_dict(), model(4).state_dict(), atol=0)


@pytest.mark.parametrize(("before", "now"), [("1GB", "1GB"), (500, "1GB"), ("1GB", 500), (800, 500)])
def test_a_failed_rename_leaves_old_weights_that_nothing_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: Any, now: Any
) -> None:
    save_weights(model(1).state_dict(), tmp_path, max_shard_size=before)

    def failing_last(path: Path, target: Path) -> Path:
        if target.name in ("model.safetensors", "model.safetensors.index.json"):
            raise OSError(5, "Input/output error")
        return path.rename(target)

    monkeypatch.setattr(Path, "replace", failing_last)
    with pytest.raises(OSError, match="Input/output"):
        save_weights(model(2).state_dict(), tmp_path, max_shard_size=now)
    fresh = model(3)
    load_checkpoint_in_model(fresh, tmp_path, strict=True)
    assert_same_numbers(fresh.state_dict(), model(1).state_dict(), atol=0)


@pytest.mark.parametrize("other", [True, False], ids=["next-to-older-pickles", "alone"])
def test_an_unfinished_save_of_the_same_shards_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: bool
) -> None:
    if other:
        save_weights(model(0).state_dict(), tmp_path, safe_serialization=False)
    save_weights(model(1).state_dict(), tmp_path, max_shard_size=800)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", lambda path, target: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            save_weights(model(2).state_dict(), tmp_path, max_shard_size=800)
    with pytest.raises(CheckpointError) as refused:
        load_checkpoint_in_model(model(3), tmp_path)
    assert str(refused.value) == (
        f"no weights in {tmp_path}: model-00001-of-00002.safetensors is there, but neither model.safetensors nor"
        " model.safetensors.index.json that opens it, so a save was not finished; save again, or give the path of"
        " another file"
    )


def test_what_is_no_tensor_is_refused_by_name_before_anything_is_written(tmp_path: Path) -> None:
    state: dict[str, Any] = {"w": torch.ones(1), "epoch": 3, "note": "text"}
    with pytest.raises(CheckpointError, match="only tensors are weights, found others under: epoch, note"):
        save_weights(state, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model"
    file.write_text("mine")
    with pytest.raises(CheckpointError, match=f"{file} is a file: give save_model a folder"):
        save_weights(model().state_dict(), file)
    assert file.read_text() == "mine"


def test_a_model_without_weights_is_saved_and_loaded(tmp_path: Path) -> None:
    save_weights({}, tmp_path)
    load_checkpoint_in_model(nn.Tanh(), tmp_path, strict=True)
