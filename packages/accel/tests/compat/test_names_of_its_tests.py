"""What Accelerate's own tests ask of its functions, beside what programs ask."""

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accel import Accelerator, FullyShardedDataParallelPlugin, ParallelismConfig, cpu_offload, infer_auto_device_map
from torch import nn

utils = import_module("accel.utils")


def test_weights_of_an_offloaded_model_come_module_by_module() -> None:
    model: Any = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.BatchNorm1d(3)))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    cpu_offload(model, execution_device="cpu")
    with utils.align_module_device(model[0]):
        assert (model[0].weight.device.type, model[1][0].weight.device.type) == ("cpu", "meta")
    assert model[0].weight.is_meta
    found = utils.get_state_dict_offloaded_model(model)
    assert list(found) == list(before)
    assert all(torch.equal(found[name], value) for name, value in before.items())
    wanted = {"0.weight": None, "other": None}
    assert torch.equal(utils.get_state_dict_from_offload(model[0], "0.weight", wanted)["0.weight"], before["0.weight"])
    assert set(wanted) == {"0.weight", "other"}


def test_weights_without_numbers_are_named() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1, device="meta"))
    with pytest.warns(UserWarning, match=r"no numbers are known of them: 1\.weight, 1\.bias"):
        assert set(utils.get_state_dict_offloaded_model(model)) == {"0.weight", "0.bias"}


def test_sizes_of_buffers_and_of_tied_modules() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.BatchNorm1d(2))
    assert utils.compute_module_total_buffer_size(model) == 2 * 8 + 8
    sizes = {"0": 24, "1": 24, "1.weight": 16}
    known = list(model.named_children())[1:]
    assert utils.get_module_size_with_ties(["1.weight"], 24, sizes, known) == (32, ["1"], [model[1]])
    assert utils.convert_file_size_to_int("0MB") == 0
    model[2].register_buffer("aside", torch.zeros(1), persistent=False)
    assert utils.get_non_persistent_buffers(model) == set()
    assert utils.get_non_persistent_buffers(model, recurse=True, fqns=True) == {"2.aside"}


def test_float8_spares_the_first_and_the_last_layer() -> None:
    pytest.importorskip("torchao")
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 12), nn.Linear(12, 16))
    utils.convert_model_to_fp8_ao(model)
    assert [type(layer).__name__ for layer in model] == ["Linear", "Float8Linear", "Linear", "Linear"]
    assert not utils.has_transformer_engine_layers(model)


def test_a_model_says_over_how_many_ranks_it_is_divided() -> None:
    model: Any = nn.Linear(1, 1)
    assert utils.get_model_tp_size(model) is None
    for said in (SimpleNamespace(tp_size=4), {"tp_size": 4}):
        model.config = SimpleNamespace(distributed_config=said)
        assert utils.get_model_tp_size(model) == 4


def test_a_forward_in_float32_is_taken_off() -> None:
    model: Any = nn.Linear(1, 1)
    model.forward = utils.convert_outputs_to_fp32(model.forward)
    assert utils.extract_model_from_parallel(model, keep_fp32_wrapper=False).forward.__func__ is nn.Linear.forward


def test_heirs_of_a_class_are_purged_too(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = import_module("os").environ

    class Tagged:
        """A class that takes a keyword from its heirs."""

        tag = ""

        def __init_subclass__(cls, tag: str = "", **more: Any) -> None:
            super().__init_subclass__(**more)
            cls.tag = tag

    @utils.purge_accelerate_environment
    class Tests(Tagged):
        """Tests without a test."""

        def setUp(self) -> None:
            environ["ACCELERATE_SET_UP"] = "1"

    class Heirs(Tests, tag="x"):
        """Tests that set a variable."""

        def test_it(self) -> None:
            environ["ACCELERATE_SET_HERE"] = "1"

    monkeypatch.setenv("ACCELERATE_SET_UP", "0")
    tests = Heirs()
    tests.setUp()
    tests.test_it()
    assert "ACCELERATE_SET_HERE" not in environ
    assert (environ["ACCELERATE_SET_UP"], tests.tag) == ("1", "x")
    again = utils.purge_accelerate_environment(Tagged)
    other: Any = type("Other", (again,), {}, tag="y")
    assert other.tag == "y"


def test_a_layer_with_a_state_along_a_sequence_is_refused() -> None:
    refuse = import_module("accel.big_modeling")._refuse_recurrent_layers_under_sequence_parallelism
    refuse(SimpleNamespace(config=SimpleNamespace(layer_types=["full_attention"])))
    refuse(nn.Linear(1, 1))
    with pytest.raises(ValueError, match="linear_attention carry a state"):
        refuse(SimpleNamespace(config=SimpleNamespace(layer_types=["linear_attention"])))


def test_sizes_come_from_variables_and_make_a_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLELISM_CONFIG_TP_SIZE", "2")
    monkeypatch.setenv("PARALLELISM_CONFIG_DP_SHARD_SIZE", "many")
    monkeypatch.setenv("PARALLELISM_CONFIG_CP_SIZE", "")
    assert ParallelismConfig().total_size == 1  # the program is not for Accelerate
    monkeypatch.setenv("ACCEL_AS_ACCELERATE", "1")
    assert ParallelismConfig().problems() == ["dp_shard_size='many': expected a whole number of at least 1"]
    sizes = ParallelismConfig(dp_replicate_size=2, dp_shard_size=3)
    assert sizes._get_mesh() == (("dp_replicate", "dp_shard", "tp"), (2, 3, 2))
    assert ParallelismConfig.from_words({}).tp_size == 1
    assert ParallelismConfig.from_words({}).build_device_mesh("cpu") is None
    assert (sizes.dp_dim_names, sizes.dp_shard_cp_dim_names) == (["dp_replicate", "dp_shard"], ["dp_shard"])


def test_the_state_has_the_plugin_of_the_newest_accelerator() -> None:
    plugin = FullyShardedDataParallelPlugin()
    state = Accelerator(cpu=True, fsdp_plugin=plugin).state
    assert (state.fsdp_plugin, state.deepspeed_plugin) == (plugin, None)
    assert Accelerator(cpu=True).state.fsdp_plugin is None
    with pytest.raises(ValueError, match="no Accelerator trains by DeepSpeed"):
        utils.get_active_deepspeed_plugin(state)
    assert utils.get_active_deepspeed_plugin(SimpleNamespace(deepspeed_plugin=plugin)) is plugin


def test_an_accelerator_that_stays_empty_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Linear(10, 4), nn.Linear(4, 4), nn.Linear(4, 8))
    assert infer_auto_device_map(model, {0: 256}) == {"": "disk"}
    assert "insufficient memory on [0]" in caplog.text
    caplog.clear()
    assert infer_auto_device_map(model, {0: 256}, fallback_allocation=True)["1"] == 0
    assert caplog.text == ""
