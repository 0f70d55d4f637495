"""What an Accelerator is asked for, by a plugin, by the launcher, and beside other ways to share the work."""

from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from accel import Accelerator, DeepSpeedPlugin, FullyShardedDataParallelPlugin
from accel.settings import Settings, resolve
from accel_deepspeed import strategy
from accel_parallel import STRATEGIES
from accel_state import CannotRun


def resolved(environ: dict[str, str] | None = None, **arguments: Any) -> Settings:
    usual = {name: parameter.default for name, parameter in signature(Accelerator).parameters.items()}
    return resolve(environ or {}, usual | arguments)


def test_the_strategy_is_found_by_its_entry_point() -> None:
    assert STRATEGIES.load("deepspeed") is strategy.STRATEGY


def test_deepspeed_of_the_environment_is_asked_for(tmp_path: Path) -> None:
    """DeepSpeed's own config decides what neither arguments nor the environment say."""
    config = tmp_path / "ds.json"
    config.write_text('{"bf16": {"enabled": true}, "gradient_accumulation_steps": 4}')
    words = f"deepspeed_config_file={config},zero_stage=3"
    settings = resolved({"ACCEL_USE_DEEPSPEED": "1", "ACCEL_DEEPSPEED_CONFIG": words})
    assert (settings.mixed_precision, settings.accumulation_steps) == ("bf16", 4)
    assert isinstance(settings.options["deepspeed"], DeepSpeedPlugin)
    assert settings.options["deepspeed"].config()["zero_optimization"] == {"stage": 3}
    with pytest.raises(ValueError, match=r"unknown names zero_stages; expected .*deepspeed_config_file"):
        resolved({"ACCEL_USE_DEEPSPEED": "1", "ACCEL_DEEPSPEED_CONFIG": "zero_stages=2"})


def test_deepspeed_and_another_way_contradict_each_other() -> None:
    plugin, sharded = DeepSpeedPlugin(zero_stage=0), FullyShardedDataParallelPlugin()
    with pytest.raises(ValueError, match="strategy='ddp' and DeepSpeed") as error:
        resolved(deepspeed_plugin=plugin, strategy="ddp", fsdp_plugin=sharded, mixed_precision="fp16")
    assert "fsdp_plugin and DeepSpeed" in str(error.value)
    assert "ZeRO stage 0 with fp16" in str(error.value)


def test_missing_deepspeed_is_said_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accel_deepspeed.strategy.find_spec", lambda name: None)
    with pytest.raises(CannotRun, match="pip install deepspeed"):
        Accelerator(cpu=True, deepspeed_plugin=DeepSpeedPlugin())
