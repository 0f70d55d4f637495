"""How models are sharded, by flags, files and variables, in our words and those of `accelerate launch`."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from accel_deepspeed import DeepSpeedPlugin
from accel_launch.cli.launch_command import ResolvedOptions, resolve_options
from accel_launch.config.option_entries import ENTRIES, PREFIX, normalised
from accel_launch.job.job import read_job
from accel_launch.job.plan import plan_one
from accel_parallel import FullyShardedDataParallelPlugin, ParallelismConfig
from accel_state.environ import settings
from accel_state.errors import CannotRun


def read(*tokens: str, environ: Mapping[str, str] | None = None) -> ResolvedOptions:
    return resolve_options([*tokens, "s.py"], environ or {"ACCEL_HOME": "/nowhere"})


def test_flags_for_single_entries_win_over_the_entries_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("distributed_type: FSDP\nfsdp_config: {fsdp_min_num_params: 5, fsdp_offload_params: true}\n")
    line = read("--config_file", str(file), "--fsdp_min_num_params", "9", "--fsdp-sharding-strategy=SHARD_GRAD_OP")
    assert line.problems == ()
    assert line.settings.use_fsdp
    assert line.settings.fsdp_config == {
        "offload_params": "true",
        "min_num_params": "9",
        "reshard_after_forward": "false",
    }


def test_processes_are_told_by_variables_that_a_script_reads_back() -> None:
    """The whole way: from flags to what an Accelerator is asked for."""
    line = read(
        *("--use_fsdp", "--fsdp_config", "transformer_layer_cls_to_wrap=One,Two,min_num_params=3"),
        *("--use_parallelism_config", "--parallelism_config_tp_size", "2", "--parallelism_config_dp_shard_size", "4"),
    )
    assert line.problems == ()
    told = settings(plan_one(line.settings, ["s.py"], {}).environ)
    assert told.fsdp is not None
    assert told.parallelism is not None
    assert FullyShardedDataParallelPlugin.from_words(told.fsdp) == FullyShardedDataParallelPlugin(
        transformer_cls_names_to_wrap=["One", "Two"], min_num_params=3
    )
    assert ParallelismConfig.from_words(told.parallelism) == ParallelismConfig(tp_size=2, dp_shard_size=4)


def test_deepspeed_is_asked_for_by_flags_or_a_file_of_accelerate(tmp_path: Path) -> None:
    """S114: --use_deepspeed --deepspeed_config_file, and what `accelerate config` writes."""
    file = tmp_path / "c.yaml"
    file.write_text(
        "distributed_type: DEEPSPEED\n"
        "deepspeed_config: {deepspeed_multinode_launcher: standard, offload_param_device: none, zero_stage: 3}\n"
    )
    by_flags = read("--use_deepspeed", "--zero_stage", "3", "--deepspeed_config_file", "Ds.json")
    for line, plugin in (
        (by_flags, DeepSpeedPlugin(hf_ds_config="Ds.json", zero_stage=3)),
        (
            read("--config_file", str(file), "--zero3_save_16bit_model", "True"),
            DeepSpeedPlugin(zero_stage=3, zero3_save_16bit_model=True),
        ),
    ):
        assert line.problems == ()
        told = settings(plan_one(line.settings, ["s.py"], {}).environ)
        assert told.deepspeed is not None
        assert DeepSpeedPlugin.from_words(told.deepspeed) == plugin


def test_nothing_asked_is_nothing_told() -> None:
    told = settings(plan_one(read().settings, ["s.py"], {}).environ)
    assert (told.fsdp, told.deepspeed, told.parallelism) == (None, None, None)
    line = read("--parallelism_config_tp_size", "1")
    assert (line.problems, line.settings.parallelism_config) == ((), None)


@pytest.mark.parametrize("option", [name for name in ENTRIES if name != "dynamo_config"])
def test_every_name_is_taken_with_and_without_its_prefix(option: str) -> None:
    for name in ENTRIES[option]:
        short, long = normalised(option, {name: "2"}), normalised(option, {PREFIX[option] + name: "2"})
        assert short == long
        assert short[1] == []


def test_every_entry_that_is_passed_on_is_one_that_the_plugin_reads() -> None:
    words = dict.fromkeys(ENTRIES["fsdp_config"], "1")
    entries, _ = normalised("fsdp_config", {**words, "sharding_strategy": "FULL_SHARD"})
    FullyShardedDataParallelPlugin.from_words(entries)
    engine, _ = normalised("deepspeed_config", dict.fromkeys(ENTRIES["deepspeed_config"], "1"))
    DeepSpeedPlugin.from_words(engine)
    sizes, _ = normalised("parallelism_config", dict.fromkeys(ENTRIES["parallelism_config"], "2"))
    ParallelismConfig.from_words(sizes)


def test_all_that_is_wrong_is_told_at_once() -> None:
    (problem,) = read("--use_fsdp", "--fsdp_config", "min_num_parms=1,sharding_strategy=NO_SHARD").problems
    assert "unknown name 'min_num_parms'; did you mean 'min_num_params'?" in problem
    assert "sharding_strategy=NO_SHARD: expected FULL_SHARD or SHARD_GRAD_OP" in problem


def test_a_launch_that_cannot_share_the_work_is_refused_at_once(tmp_path: Path) -> None:
    script = tmp_path / "s.py"
    script.write_text("")
    flags = ["-n", "3", "--cpu", "--fsdp_min_num_params", "2", "--parallelism_config_dp_shard_size", "2"]
    both = resolve_options(["--use_fsdp", "--use_deepspeed", "--cpu", str(script)], {"ACCEL_HOME": "/nowhere"})
    with pytest.raises(CannotRun, match="--use_fsdp and --use_deepspeed contradict each other"):
        read_job(both)
    options = resolve_options([*flags, "--parallelism_config_tp_size", "2", str(script)], {"ACCEL_HOME": "/nowhere"})
    with pytest.raises(CannotRun) as caught:
        read_job(options)
    assert caught.value.reasons == (
        "fsdp_config says how models are sharded, and nothing asks for it: add --use_fsdp",
        "parallelism_config is for 4 processes (dp_shard_size 2 x tp_size 2), and 3 would start",
    )
