"""Weights go where the map says, or nothing changes."""

import json
from pathlib import Path

import pytest
import torch
from accel_big import load_checkpoint_in_model, offload_state_dict
from accel_big.offload.disk_weights import DiskWeights, weights_in
from accel_checkpoint import CheckpointError, save_weights
from accel_state.errors import CannotRun
from safetensors.torch import save_file
from torch import nn

MAP = {"0": "cpu", "1": "cpu", "2": "disk"}


def make(device: str = "cpu") -> nn.Sequential:
    with torch.device(device):
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 5))


@pytest.fixture
def whole() -> nn.Sequential:
    torch.manual_seed(3)
    return make()


@pytest.mark.parametrize("dtype", [None, "float16", torch.bfloat16])
@pytest.mark.parametrize("form", ["one", "shards", "pickle", "pickled shards"])
@pytest.mark.parametrize("made_on", ["cpu", "meta"])
def test_parts_are_loaded_and_the_rest_stays_in_its_files(
    whole: nn.Sequential, tmp_path: Path, form: str, made_on: str, dtype: str | torch.dtype | None
) -> None:
    """S142: from one file or shards, safetensors or not; the dtype changes on the way."""
    most = 60 if "shards" in form else "1GB"
    save_weights(whole.state_dict(), tmp_path / "c", max_shard_size=most, safe_serialization="pickle" not in form)
    model = make(made_on)
    load_checkpoint_in_model(model, tmp_path / "c", MAP, tmp_path / "o", dtype=dtype)
    target = torch.float32 if dtype is None else getattr(torch, str(dtype).removeprefix("torch."))
    assert {name for name, tensor in model.named_parameters() if tensor.is_meta} == {"2.weight", "2.bias"}
    stored = DiskWeights(weights_in(tmp_path / "o"))
    for name, expected in whole.state_dict().items():
        got = stored[name] if name in stored else model.state_dict()[name]
        assert got.dtype == (target if expected.is_floating_point() else expected.dtype)
        assert torch.equal(got, expected.to(got.dtype))
    if "pickle" not in form:
        assert [path.name for path in (tmp_path / "o").iterdir()] == ["index.json"], "nothing is written twice"


def test_one_device_needs_no_folder(whole: nn.Sequential, tmp_path: Path) -> None:
    save_weights(whole.state_dict(), tmp_path)
    for device_map in (None, {"": "cpu"}, {"0": "cpu", "1": "cpu", "2": "cpu"}):
        model = make("cpu")
        load_checkpoint_in_model(model, tmp_path, device_map)
        assert torch.equal(model.get_parameter("2.weight"), whole.get_parameter("2.weight"))
    model = make("meta")
    load_checkpoint_in_model(model, tmp_path, {"": "cpu"}, dtype="float16", keep_in_fp32_modules=["2"])
    assert (model[0].weight.dtype, model[2].weight.dtype) == (torch.float16, torch.float32)


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    """S142: the files have one of the names."""
    whole = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    whole[1].weight = whole[0].weight
    save_weights(whole.state_dict(), tmp_path)
    for place in ("cpu", "disk"):
        with torch.device("meta"):
            model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        model[1].weight = model[0].weight
        load_checkpoint_in_model(model, tmp_path, {"0": place, "1": place}, tmp_path / "o")
        assert model[1].weight is model[0].weight
    stored = DiskWeights(weights_in(tmp_path / "o"))
    assert torch.equal(stored["1.weight"], whole.get_parameter("0.weight"))
    assert torch.equal(stored["0.weight"], whole.get_parameter("0.weight"))


def test_buffers_stay_unless_they_are_offloaded(whole: nn.Sequential, tmp_path: Path) -> None:
    save_weights(whole.state_dict(), tmp_path)
    model = make("meta")
    load_checkpoint_in_model(model, tmp_path, {"": "disk"}, tmp_path / "o")
    assert not model[1].running_mean.is_meta
    assert model[1].weight.is_meta
    model = make("meta")
    load_checkpoint_in_model(model, tmp_path, {"": "disk"}, tmp_path / "o", offload_buffers=True)
    assert model[1].running_mean.is_meta


def test_all_that_is_wrong_is_told_before_anything_changes(whole: nn.Sequential, tmp_path: Path) -> None:
    """S142: another shape, another kind of numbers, a name twice, a file cut short."""
    state = whole.state_dict()
    half = {"0.weight": torch.zeros(2, 2), "0.bias": torch.zeros(4, dtype=torch.int64), "1.bias": state["1.bias"]}
    save_file(half, tmp_path / "a.safetensors")
    save_file({"1.bias": state["1.bias"].clone(), "1.weight": state["1.weight"]}, tmp_path / "b.safetensors")
    save_file({"2.bias": state["2.bias"]}, tmp_path / "c.safetensors")
    cut = tmp_path / "c.safetensors"
    cut.write_bytes(cut.read_bytes()[:-3])
    names = {"0.weight": "a", "1.weight": "b", "2.bias": "c"}
    index = {"weight_map": {name: f"{file}.safetensors" for name, file in names.items()}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    model = make("meta")
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint_in_model(model, tmp_path, MAP, tmp_path / "o")
    for part in (
        "0.weight: [2, 2] in the file, [4, 3] in the model",
        "0.bias: torch.int64 in the file, torch.float32 in the model",
        "1.bias is in a.safetensors and in b.safetensors",
        "c.safetensors is damaged",
        "missing from the files: 2.weight, 2.bias, 1.running_mean",
    ):
        assert part in str(caught.value)
    assert all(tensor.is_meta for tensor in model.parameters())
    assert not (tmp_path / "o").exists()
    cut.unlink()
    with pytest.raises(CheckpointError, match="names files that are missing"):
        load_checkpoint_in_model(model, tmp_path, MAP, tmp_path / "o")


def test_names_that_differ_are_a_warning_and_an_error_if_strict(whole: nn.Sequential, tmp_path: Path) -> None:
    save_weights({**whole.state_dict(), "more": torch.zeros(2)}, tmp_path)
    with pytest.warns(UserWarning, match="not in the model: more"):
        load_checkpoint_in_model(make(), tmp_path, MAP, tmp_path / "o")
    with pytest.raises(CheckpointError, match="not in the model: more"):
        load_checkpoint_in_model(make(), tmp_path, MAP, tmp_path / "o", strict=True)


def test_what_is_on_disk_needs_a_folder_for_its_index(whole: nn.Sequential, tmp_path: Path) -> None:
    save_weights(whole.state_dict(), tmp_path)
    with pytest.raises(CannotRun, match="give offload_folder"):
        load_checkpoint_in_model(make(), tmp_path, MAP)
    with pytest.raises(ValueError, match="floating-point"):
        load_checkpoint_in_model(make(), tmp_path, MAP, tmp_path / "o", dtype="int8")
    with pytest.raises(CannotRun, match="no entry covers"):
        load_checkpoint_in_model(make(), tmp_path, {"0": "cpu"})


def test_an_offload_folder_gives_back_what_was_put_in(tmp_path: Path) -> None:
    state = {"a": torch.arange(5), "b": torch.randn(3, 2).bfloat16(), "c": torch.tensor(2.0), "d": torch.empty(0, 3)}
    offload_state_dict(tmp_path, state)
    stored = DiskWeights(weights_in(tmp_path))
    assert set(stored) == set(state)
    assert all(torch.equal(stored[name], state[name]) for name in state)
    stored["a"].add_(1)
    assert torch.equal(DiskWeights(weights_in(tmp_path))["a"], state["a"]), "the file stays as it is"


def test_numbers_at_odd_places_are_read(tmp_path: Path) -> None:
    """Files of other writers need not align their numbers."""
    save_file({"a": torch.tensor([1], dtype=torch.uint8), "b": torch.randn(3)}, tmp_path / "model.safetensors")
    raw = (tmp_path / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    odd = (length + 1).to_bytes(8, "little") + raw[8 : 8 + length] + b" " + raw[8 + length :]
    expected = DiskWeights(weights_in(tmp_path))["b"].clone()
    (tmp_path / "model.safetensors").write_bytes(odd)
    assert torch.equal(DiskWeights(weights_in(tmp_path))["b"], expected)


def test_weights_that_accelerate_offloaded_are_read(tmp_path: Path) -> None:
    numbers = torch.randn(2, 3)
    (tmp_path / "w.dat").write_bytes(numbers.numpy().tobytes())
    (tmp_path / "index.json").write_text(json.dumps({"w": {"dtype": "float32", "shape": [2, 3]}}))
    assert torch.equal(DiskWeights(weights_in(tmp_path))["w"], numbers)
    (tmp_path / "w.dat").write_bytes(b"short")
    with pytest.raises(CheckpointError, match=r"w.dat is too short: w ends at byte 24 of 5"):
        DiskWeights(weights_in(tmp_path))
    (tmp_path / "index.json").write_text(json.dumps({"w": {"safetensors_file": str(tmp_path / "gone")}}))
    with pytest.raises(CheckpointError, match="gone"):
        weights_in(tmp_path)
    (tmp_path / "index.json").write_text("[")
    with pytest.raises(CheckpointError, match="not an index of offloaded weights"):
        weights_in(tmp_path)


class Odd(nn.Module):
    """Two parameters in one memory, an empty one with two names, and a sparse buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.b.weight.data = self.a.weight.data
        self.e = nn.Parameter(torch.zeros(0, 3))
        self.f = self.e
        self.register_buffer("sparse", torch.eye(3).to_sparse())


def test_a_parameter_that_only_has_the_memory_of_another_is_missed(tmp_path: Path) -> None:
    """It has a memory of its own as soon as the dtype changes."""
    save_file({"a.weight": torch.ones(3, 3), "e": torch.zeros(0, 3)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"missing from the files: b\.weight"):
        load_checkpoint_in_model(
            Odd(), tmp_path, dict.fromkeys("abef", "cpu") | {"sparse": "cpu"}, dtype=torch.float64, strict=True
        )


def test_a_buffer_without_an_address_is_missed_like_any_other(tmp_path: Path) -> None:
    save_file({"a.weight": torch.ones(3, 3), "e": torch.zeros(0, 3)}, tmp_path / "model.safetensors")
    with pytest.warns(UserWarning, match="missing from the files: sparse"):
        load_checkpoint_in_model(Odd(), tmp_path)


def test_a_device_that_this_machine_lacks_is_refused(whole: nn.Sequential, tmp_path: Path) -> None:
    save_weights(whole.state_dict(), tmp_path)
    there = torch.accelerator.device_count()
    with pytest.raises(CannotRun, match=f"'1': {there}: "):
        load_checkpoint_in_model(make(), tmp_path, {"0": "cpu", "1": there, "2": "cpu"})
