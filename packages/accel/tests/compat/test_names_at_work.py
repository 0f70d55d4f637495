"""Functions of `accel.utils`, and of other paths, do what scripts for Accelerate want of them."""

import os
from importlib import import_module
from pathlib import Path
from typing import Any, assert_type

import pytest
import torch
from accel import Accelerator
from accel.data_loader import SkipBatchSampler, SkipDataLoader
from accel_names.casting import attach_layerwise_casting_hooks
from suite.toy_models import Mlp
from torch import nn
from torch.optim import SGD
from torch.utils.data import BatchSampler, SequentialSampler

utils = import_module("accel.utils")


def test_variables_are_changed_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AA", "before")

    def fail() -> None:
        with utils.patch_environment(aa=1, bb="x"):
            assert (os.environ["AA"], os.environ["BB"]) == ("1", "x")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert os.environ["AA"] == "before"
    assert "BB" not in os.environ
    with utils.clear_environment():
        assert not os.environ
    assert os.environ["AA"] == "before"


def test_variables_of_the_launcher_are_purged_after_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """S172: those that it sets, also when it fails; others stay."""
    monkeypatch.setenv("ACCEL_MIXED_PRECISION", "bf16")

    @utils.purge_accelerate_environment  # type: ignore[untyped-decorator]
    def sets() -> None:
        os.environ["ACCELERATE_USE_FSDP"] = os.environ["OTHER_OF_A_TEST"] = "1"
        os.environ["ACCEL_MIXED_PRECISION"] = "no"
        raise KeyError

    monkeypatch.setenv("OTHER_OF_A_TEST", "0")
    with pytest.raises(KeyError):
        sets()
    assert "ACCELERATE_USE_FSDP" not in os.environ
    assert (os.environ["ACCEL_MIXED_PRECISION"], os.environ["OTHER_OF_A_TEST"]) == ("bf16", "1")


def test_words_and_numbers_of_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONE", "2")
    monkeypatch.setenv("YES", "on")
    assert utils.get_int_from_env(["NO_SUCH", "ONE"], 5) == 2
    assert utils.get_int_from_env(["NO_SUCH"], 5) == 5
    assert utils.parse_flag_from_env("YES")
    assert utils.parse_choice_from_env("NO_SUCH") == "no"
    with pytest.raises(ValueError, match="'maybe': expected one of"):
        utils.str_to_bool("maybe")


def test_tensors_of_models_are_named_and_placed() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    names = [name for name, _ in utils.named_module_tensors(model, recurse=True)]
    assert names == [*dict(model.named_parameters()), *dict(model.named_buffers())]
    utils.set_module_tensor_to_device(model, "0.weight", "meta")
    assert model[0].weight.is_meta
    with pytest.raises(ValueError, match="on the meta device"):
        utils.set_module_tensor_to_device(model, "0.weight", "cpu")
    with pytest.raises(ValueError, match=r"has the shape \[2, 2\], and the values have \[3\]"):
        utils.set_module_tensor_to_device(model, "0.weight", "cpu", value=torch.zeros(3))
    utils.set_module_tensor_to_device(model, "0.weight", "cpu", value=torch.ones(2, 2), dtype=torch.float64)
    assert model[0].weight.dtype is torch.float64
    counted = "1.num_batches_tracked"
    utils.set_module_tensor_to_device(model, counted, "cpu", value=torch.tensor(3), dtype=torch.float16)
    assert model[1].num_batches_tracked.dtype is torch.int64, "integers keep their dtype"
    with pytest.raises(ValueError, match="neither a parameter nor a buffer"):
        utils.set_module_tensor_to_device(model, "0.wait", "cpu")
    assert (utils.dtype_byte_size(torch.bfloat16), utils.dtype_byte_size(torch.bool)) == (2, 0.125)


def test_ties_are_made_again() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    utils.retie_parameters(model, [["0.weight", "1.weight"]])
    assert model[0].weight is model[1].weight
    with pytest.warns(UserWarning, match="0.weight on cpu, 1.weight on disk"):
        utils.check_tied_parameters_on_same_device([["0.weight", "1.weight"]], {"0": "cpu", "1": "disk"})
    with pytest.warns(UserWarning, match="1.weight"):
        cleaned = utils.clean_state_dict_for_safetensors(model.state_dict())
    assert set(cleaned) == {"0.weight", "0.bias", "1.bias"}


def test_weights_in_a_folder_are_read_when_they_are_asked_for(tmp_path: Path) -> None:
    weights = {"a.x": torch.arange(6.0).view(2, 3), "b": torch.tensor(3, dtype=torch.int64)}
    index: dict[str, Any] = {}
    for name, weight in weights.items():
        utils.offload_weight(weight.to(torch.bfloat16) if name == "a.x" else weight, name, tmp_path, index)
    utils.save_offload_index(index, tmp_path)
    loader = utils.OffloadedWeightsLoader(save_folder=tmp_path, state_dict={"c": torch.zeros(1)})
    assert sorted(loader) == ["a.x", "b", "c"]
    assert loader["a.x"].tolist() == weights["a.x"].tolist()
    assert loader["b"].item() == 3
    assert list(utils.PrefixedDataset(loader, "a.")) == ["a.x"]
    assert utils.PrefixedDataset(loader, "a.")["x"].dtype is torch.bfloat16
    assert list(utils.extract_submodules_state_dict(weights, ["a"])) == ["a.x"]


def test_structures_of_tensors() -> None:
    data = {"x": torch.zeros(2, 3), "y": [torch.ones(1, dtype=torch.int8)]}
    about = utils.get_data_structure(data)
    assert utils.is_tensor_information(about["x"])
    made = utils.initialize_tensors(about)
    assert (made["x"].shape, made["y"][0].dtype) == (torch.Size([2, 3]), torch.int8)
    assert utils.find_device({"a": [3, torch.zeros(1)]}) == torch.device("cpu")
    assert utils.find_device([3]) is None
    forward = utils.convert_outputs_to_fp32(lambda: torch.zeros(1, dtype=torch.bfloat16))
    assert forward().dtype is torch.float32


class Halved(nn.Linear):
    @utils.convert_outputs_to_fp32  # type: ignore[untyped-decorator]
    def forward(self, x: Any) -> Any:
        return super().forward(x).bfloat16()


def test_a_decorated_method_gets_its_object() -> None:
    assert Halved(1, 1)(torch.ones(1)).dtype is torch.float32


def test_parts_of_models() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(1, 1)), nn.ReLU())
    named = [name for name, _ in utils.get_module_children_bottom_up(model, return_fqns=True)]
    assert named == ["0.0", "0", "1", ""]
    assert utils.recursive_getattr(torch, "nn.Linear") is nn.Linear
    wrapped = nn.Sequential(nn.DataParallel(nn.Linear(1, 1)))
    assert isinstance(utils.extract_model_from_parallel(wrapped, recursive=True)[0], nn.Linear)
    assert utils.convert_bytes(1536) == "1.5 KB"
    assert utils.merge_dicts({"a": {"b": 1}}, {"a": {"c": 2}}) == {"a": {"c": 2, "b": 1}}
    assert utils.get_pretty_name(nn.Linear) == "Linear"


def test_layers_store_their_weights_in_a_small_dtype() -> None:
    """S172."""
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4))
    attach_layerwise_casting_hooks(model, torch.float8_e4m3fn, torch.float32, skip_modules_pattern="^2$")
    assert [model[at].weight.dtype for at in range(3)] == [torch.float8_e4m3fn, torch.float32, torch.float32]
    assert model(torch.ones(2, 4)).dtype is torch.float32
    assert model[0].weight.dtype is torch.float8_e4m3fn


def test_loaders_leave_their_first_batches_out() -> None:
    """S172."""
    numbers: Any = range(8)
    loader: SkipDataLoader[Any] = SkipDataLoader(numbers, skip_batches=2, batch_size=2)
    assert [batch.tolist() for batch in loader] == [[4, 5], [6, 7]]
    sampler = SkipBatchSampler(BatchSampler(SequentialSampler(numbers), 3, drop_last=False), 1)
    assert (list(sampler), len(sampler)) == ([[3, 4, 5], [6, 7]], 2)


def test_eight_objects_keep_their_types() -> None:
    """S172: in an editor `prepare` gives back what it was given."""
    accelerator, model = Accelerator(cpu=True), Mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    six = accelerator.prepare(model, optimizer, 1, "2", None, 3.0)
    assert_type(six, tuple[Mlp, SGD, int, str, None, float])
    seven = accelerator.prepare(*six, b"4")
    assert_type(seven, tuple[Mlp, SGD, int, str, None, float, bytes])
    eight = accelerator.prepare(*seven, [5])
    assert_type(eight, tuple[Mlp, SGD, int, str, None, float, bytes, list[int]])
    assert eight[2:] == (1, "2", None, 3.0, b"4", [5])
