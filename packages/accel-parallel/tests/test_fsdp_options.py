"""Options of sharding: what FSDP2 has, and the words for what only FSDP1 had."""

from typing import Any

import pytest
from accel_parallel import FullyShardedDataParallelPlugin, ParallelismConfig
from accel_parallel.fsdp_options import FSDP1_ONLY
from accel_parallel.wrap_policy import UnknownBlocks
from accel_state.mesh import MeshSpec
from torch import nn


def test_the_defaults_are_right() -> None:
    assert FullyShardedDataParallelPlugin().problems() == []
    assert ParallelismConfig(dp_replicate_size=2, dp_shard_size=2, tp_size=2).problems() == []
    assert ParallelismConfig(dp_replicate_size=2, dp_shard_size=3).total_size == 6


@pytest.mark.parametrize(("name", "value"), [(name, "HYBRID_SHARD") for name in FSDP1_ONLY])
def test_an_option_of_fsdp1_is_refused_with_the_way_to_say_it(name: str, value: Any) -> None:
    (line,) = FullyShardedDataParallelPlugin(**{name: value}).problems()
    assert line.startswith(f"{name}='HYBRID_SHARD' is an option of FSDP1: ")


@pytest.mark.parametrize("name", ["use_orig_params", "sync_module_states", "limit_all_gathers"])
def test_options_that_ask_for_what_is_always_so_are_taken(name: str) -> None:
    always: Any = {name: True}
    assert FullyShardedDataParallelPlugin(**always).problems() == []


WRONG: list[dict[str, Any]] = [
    {"fsdp_version": 3},
    {"auto_wrap_policy": "by_taste"},
    {"state_dict_type": "LOCAL_STATE_DICT"},
    {"reshard_after_forward": "yes"},
    {"min_num_params": 0},
]


def test_what_fsdp1_says_in_other_words_is_taken() -> None:
    for strategy, reshard in (("FULL_SHARD", True), ("SHARD_GRAD_OP", False), (2, False)):
        plugin = FullyShardedDataParallelPlugin(sharding_strategy=strategy, backward_prefetch="BACKWARD_PRE")
        assert plugin.reshard_after_forward is reshard
        assert plugin.problems() == []


def test_the_words_of_a_config_file_become_options() -> None:
    words = {
        "reshard_after_forward": "false",
        "auto_wrap_policy": "SIZE_BASED_WRAP",
        "transformer_layer_cls_to_wrap": "One, Two",
        "min_num_params": "7",
        "offload_params": "true",
        "state_dict_type": "full_state_dict",
    }
    assert FullyShardedDataParallelPlugin.from_words(words) == FullyShardedDataParallelPlugin(
        reshard_after_forward=False,
        auto_wrap_policy="size_based_wrap",
        transformer_cls_names_to_wrap=["One", "Two"],
        min_num_params=7,
        cpu_offload=True,
        state_dict_type="FULL_STATE_DICT",
    )
    assert FullyShardedDataParallelPlugin.from_words({"reshard_after_forward": "4"}).reshard_after_forward == 4
    with pytest.raises(ValueError, match=r"offload_params=maybe: expected true or false; .*unknown name 'x'"):
        FullyShardedDataParallelPlugin.from_words({"offload_params": "maybe", "x": "1"})


def test_sizes_of_a_config_file_become_a_mesh() -> None:
    assert ParallelismConfig.from_words({"tp_size": "2"}) == ParallelismConfig(tp_size=2)
    (line,) = ParallelismConfig.from_words({"tp_size": "two"}).problems()
    assert line.startswith("tp_size='two'")


def test_all_problems_are_told_at_once() -> None:
    together = {name: value for options in WRONG for name, value in options.items()}
    assert len(FullyShardedDataParallelPlugin(**together).problems()) == len(WRONG)
    for options in WRONG:
        assert len(FullyShardedDataParallelPlugin(**options).problems()) == 1


def test_sizes_that_cannot_be_are_named() -> None:
    wrong: Any = {"dp_shard_size": 0, "tp_size": "two", "cp_size": -2}
    lines = ParallelismConfig(**wrong).problems()
    assert [line.split("=")[0] for line in lines] == ["dp_shard_size", "tp_size", "cp_size"]


def test_sequences_are_divided_by_what_is_here() -> None:
    words = {"sp_size": "2", "sp_backend": "torch", "sp_seq_length": "None", "sp_attn_implementation": "sdpa"}
    config = ParallelismConfig.from_words(words)
    assert config == ParallelismConfig(sp_size=2, sp_backend="torch")
    assert config.problems() == []
    assert config.mesh == MeshSpec(replicate=2, sequence=2)
    assert ParallelismConfig(dp_shard_size=2, cp_size=2, sp_size=2).mesh == MeshSpec(shard=8, context=2, sequence=2)
    assert ParallelismConfig(sp_backend="deepspeed").problems() == [], "nothing is divided"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sp_size": 2, "sp_backend": "deepspeed"}, "torch divides sequences here, without DeepSpeed"),
        ({"cp_size": 2, "cp_backend": "megatron"}, "cp_backend='megatron': torch divides"),
        ({"sp_size": 2, "tp_size": 2}, "layers and sequences are not divided together"),
    ],
)
def test_other_ways_to_divide_sequences_are_refused(options: dict[str, Any], words: str) -> None:
    (line,) = ParallelismConfig(**options).problems()
    assert words in line


def test_options_that_are_left_out_come_from_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    words = {
        "FSDP_SHARDING_STRATEGY": "SHARD_GRAD_OP",
        "FSDP_OFFLOAD_PARAMS": "true",
        "FSDP_STATE_DICT_TYPE": "full_state_dict",
        "FSDP_TRANSFORMER_CLS_TO_WRAP": "A, B",
        "FSDP_MIN_NUM_PARAMS": "5",
        "FSDP_CPU_RAM_EFFICIENT_LOADING": "True",
        "FSDP_BACKWARD_PREFETCH": "BACKWARD_PRE",
    }
    for name, word in words.items():
        monkeypatch.setenv(name, word)
    assert FullyShardedDataParallelPlugin().sharding_strategy is None
    assert not FullyShardedDataParallelPlugin.from_words({}).cpu_offload  # the program is not for Accelerate
    monkeypatch.setenv("ACCEL_AS_ACCELERATE", "1")
    plugin = FullyShardedDataParallelPlugin(min_num_params=7)
    assert (plugin.reshard_after_forward, plugin.cpu_offload, plugin.state_dict_type) == (
        False,
        True,
        "FULL_STATE_DICT",
    )
    assert (plugin.transformer_cls_names_to_wrap, plugin.min_num_params) == (["A", "B"], 7)
    assert plugin.cpu_ram_efficient_loading
    assert plugin.problems() == []
    monkeypatch.setenv("FSDP_VERSION", "2")
    monkeypatch.setenv("FSDP_RESHARD_AFTER_FORWARD", "FULL_SHARD")
    assert FullyShardedDataParallelPlugin().reshard_after_forward is True
    monkeypatch.setenv("FSDP_OFFLOAD_PARAMS", "on")
    assert FullyShardedDataParallelPlugin().cpu_offload
    monkeypatch.setenv("FSDP_OFFLOAD_PARAMS", "maybe")
    with pytest.raises(ValueError, match="FSDP_OFFLOAD_PARAMS=maybe: expected true or false"):
        FullyShardedDataParallelPlugin()


@pytest.mark.parametrize(("strategy", "said"), [("FULL_SHARD", False), ("SHARD_GRAD_OP", True)])
def test_what_a_script_says_of_freeing_counts_more_than_a_variable(
    strategy: str, said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCEL_AS_ACCELERATE", "1")
    monkeypatch.setenv("FSDP_SHARDING_STRATEGY", strategy)
    assert FullyShardedDataParallelPlugin().reshard_after_forward is not said
    for plugin in (
        FullyShardedDataParallelPlugin(reshard_after_forward=said),
        FullyShardedDataParallelPlugin.from_words({"reshard_after_forward": str(said)}),
    ):
        assert plugin.reshard_after_forward is said
    monkeypatch.setenv("FSDP_SHARDING_STRATEGY", "HYBRID_SHARD")
    with pytest.raises(ValueError, match=r"FSDP_SHARDING_STRATEGY=HYBRID_SHARD: .* say ParallelismConfig"):
        FullyShardedDataParallelPlugin()


def test_the_blocks_of_a_model_are_noted() -> None:
    model = nn.Sequential(nn.TransformerEncoderLayer(4, 1), nn.TransformerEncoderLayer(4, 1))
    plugin = FullyShardedDataParallelPlugin(transformer_cls_names_to_wrap=["TransformerEncoderLayer", "Linear"])
    plugin.set_auto_wrap_policy(model)
    assert plugin.transformer_cls_names_to_wrap == ["Linear", "TransformerEncoderLayer"]
    plugin.transformer_cls_names_to_wrap = ["T5Layer"]
    with pytest.raises(UnknownBlocks, match="T5Layer"):
        plugin.set_auto_wrap_policy(model)
    plugin.auto_wrap_policy = "NO_WRAP"
    plugin.set_auto_wrap_policy(model)
    plugin.set_state_dict_type("FULL_STATE_DICT")
    assert plugin.state_dict_type == "FULL_STATE_DICT"


def test_sizes_without_sequences_are_counted_as_they_are() -> None:
    config = ParallelismConfig(dp_shard_size=2)
    assert config.counted is config
    assert ParallelismConfig(sp_size=2).counted == ParallelismConfig(tp_size=2)
