"""What contradicts DeepSpeed's config is listed at once, and its "auto" values are filled."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from accel_deepspeed import DeepSpeedPlugin, DummyOptim, DummyScheduler
from accel_deepspeed.config import Known, fill
from accel_parallel import Asked

CONTRADICTIONS: list[tuple[dict[str, Any], dict[str, Any], Asked, str]] = [
    ({"zero_stage": 1}, {"zero_optimization": {"stage": 3}}, Asked(), "stage is 1 by the plugin's option, and 3"),
    ({"gradient_accumulation_steps": 2}, {"gradient_accumulation_steps": 4}, Asked(), "is 2 by the plugin's option"),
    ({}, {"gradient_accumulation_steps": 4}, Asked(accumulation_steps=2), "is 2 for the Accelerator, and 4"),
    ({"gradient_clipping": 1.0}, {"gradient_clipping": 0.5}, Asked(), "gradient_clipping is 1.0"),
    (
        {"offload_optimizer_device": "cpu"},
        {"zero_optimization": {"offload_optimizer": {"device": "nvme"}}},
        Asked(),
        "offload_optimizer.device is 'cpu'",
    ),
    (
        {"offload_param_device": "cpu", "zero_stage": 3},
        {"zero_optimization": {"offload_param": {"device": "nvme"}}},
        Asked(),
        "offload_param.device is 'cpu'",
    ),
    (
        {"zero3_save_16bit_model": False},
        {"zero_optimization": {"stage3_gather_16bit_weights_on_model_save": True}},
        Asked(),
        "stage3_gather_16bit_weights_on_model_save is False",
    ),
    ({}, {"bf16": {"enabled": True}}, Asked(precision="fp16"), "mixed_precision='fp16'.*bf16.enabled is True"),
    ({}, {"fp16": {"enabled": False}}, Asked(precision="fp16"), "mixed_precision='fp16'.*fp16.enabled is False"),
    ({}, {"fp16": {"enabled": True}}, Asked(precision="no"), "mixed_precision='no'.*fp16.enabled is True"),
    ({}, {"fp16": {"enabled": True}, "bf16": {"enabled": True}}, Asked(), "both true"),
    ({}, {}, Asked(precision="fp8"), "mixed_precision='fp8': DeepSpeed computes in fp16, bf16 or no"),
    ({"zero_stage": 0}, {}, Asked(precision="bf16"), "stage 0 with bf16"),
    ({"offload_param_device": "cpu", "zero_stage": 2}, {}, Asked(), "offload_param to 'cpu' needs ZeRO stage 3"),
    (
        {"offload_optimizer_device": "cpu", "zero_stage": 0},
        {},
        Asked(),
        "offload_optimizer to 'cpu' needs ZeRO stage 1",
    ),
    ({}, {"zero_optimization": {"stage": 4}}, Asked(), "zero_optimization.stage=4: expected 0, 1, 2 or 3"),
    ({"zero_stage": 5}, {}, Asked(), "zero_optimization.stage=5: expected 0, 1, 2 or 3"),
    ({"offload_param_device": "disk", "zero_stage": 3}, {}, Asked(), "offload_param_device='disk': expected one of"),
    ({}, {}, Asked(strategy="ddp"), "strategy='ddp' and DeepSpeed contradict"),
    ({}, {}, Asked(fsdp=True), "fsdp_plugin and DeepSpeed contradict"),
    ({}, {}, Asked(mesh=True), "parallelism_config .* and DeepSpeed contradict"),
    ({}, {}, Asked(scaler_options=True), "GradScalerKwargs"),
    ({}, {}, Asked(ddp_options=True), "DistributedDataParallelKwargs"),
    ({}, {"amp": {"enabled": True}}, Asked(), "amp: apex is not used here"),
    ({}, {"torch_autocast": {"enabled": True}}, Asked(), "torch_autocast: the Accelerator enters autocast"),
    ({"zero3_init_flag": True}, {}, Asked(), "zero3_init_flag: is not there"),
    ({"enable_msamp": True}, {}, Asked(), "enable_msamp: MS-AMP"),
    ({}, {"managed_gradient_accumulation": False}, Asked(), "managed_gradient_accumulation=false"),
    ({"hf_ds_config": "/nowhere.json"}, {}, Asked(), "hf_ds_config='/nowhere.json' cannot be read"),
]


@pytest.mark.parametrize(
    ("options", "config", "asked", "words"), CONTRADICTIONS, ids=[row[3] for row in CONTRADICTIONS]
)
def test_a_contradiction_is_named(options: dict[str, Any], config: dict[str, Any], asked: Asked, words: str) -> None:
    problems = DeepSpeedPlugin(**{"hf_ds_config": config, **options}).problems(asked)
    assert len(problems) == 1, problems
    assert re.search(words, problems[0])


def test_all_contradictions_are_listed_at_once() -> None:
    config = {"fp16": {"enabled": True}, "gradient_accumulation_steps": 4, "zero_optimization": {"stage": 3}}
    asked = Asked(precision="bf16", accumulation_steps=2, fsdp=True, strategy="ddp")
    assert len(DeepSpeedPlugin(hf_ds_config=config, zero_stage=1).problems(asked)) == 5


def test_options_that_agree_are_none() -> None:
    config = {"fp16": {"enabled": "auto"}, "gradient_accumulation_steps": 4, "zero_optimization": {"stage": 3}}
    plugin = DeepSpeedPlugin(hf_ds_config=config, zero_stage=3, gradient_accumulation_steps="4")
    assert plugin.problems(Asked(precision="bf16", accumulation_steps=4)) == []
    assert plugin.accumulation_steps == 4


def test_the_config_of_a_file_is_completed_by_options(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text(
        json.dumps({"bf16": {"enabled": True}, "zero_optimization": {"overlap_comm": False, "stage": "auto"}})
    )
    plugin = DeepSpeedPlugin(file, offload_optimizer_device="cpu", gradient_clipping="auto")
    assert plugin.problems(Asked()) == []
    assert plugin.precision == "bf16"
    zero = {"overlap_comm": False, "stage": 2, "offload_optimizer": {"device": "cpu"}}
    assert plugin.config() == {"bf16": {"enabled": True}, "zero_optimization": zero}


KNOWN = Known(
    world_size=2,
    accumulation_steps=3,
    precision="bf16",
    micro_batch=4,
    hidden_size=64,
    optimizer={"lr": 0.1, "weight_decay": 0.0},
    scheduler={"warmup_num_steps": 5},
)


def test_auto_values_are_filled_from_what_was_prepared() -> None:
    auto = {
        "train_batch_size": "auto",
        "gradient_clipping": "auto",
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto"},
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}},
        "zero_optimization": {"reduce_bucket_size": "auto", "stage3_param_persistence_threshold": "auto"},
    }
    filled = fill(auto, KNOWN)
    assert filled["train_batch_size"] == 24
    assert filled["train_micro_batch_size_per_gpu"] == 4
    assert filled["gradient_accumulation_steps"] == 3
    assert filled["gradient_clipping"] == 0.0
    assert (filled["bf16"], filled["fp16"]) == ({"enabled": True}, {"enabled": False})
    assert filled["optimizer"]["params"] == {"lr": 0.1, "weight_decay": 0.0}
    assert filled["scheduler"]["params"] == {"warmup_num_steps": 5}
    assert filled["zero_optimization"] == {"reduce_bucket_size": 4096, "stage3_param_persistence_threshold": 640}


def test_what_nobody_says_and_sizes_that_do_not_multiply_are_listed() -> None:
    wrong = {"train_batch_size": 7, "scheduler": {"params": {"total_num_steps": "auto", "warmup_num_steps": 1}}}
    with pytest.raises(ValueError, match=r"total_num_steps is \"auto\".*\n.*train_batch_size is 7 .* and 24") as error:
        fill(wrong, KNOWN)
    assert "4 samples x 3 micro-batches x 2 ranks" in str(error.value)


def test_a_stand_in_steps_for_nobody() -> None:
    weights = [torch.nn.Parameter(torch.ones(2))]
    optimizer = DummyOptim(weights, lr=0.5)
    schedule = DummyScheduler(optimizer, total_num_steps=10, warmup_num_steps=2)
    assert schedule.get_last_lr() == [0.5]
    with pytest.raises(RuntimeError, match="DummyOptim stands for the optimizer of DeepSpeed's config"):
        optimizer.step()
