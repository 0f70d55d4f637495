"""Attributes, states and commands that scripts for Accelerate ask for."""

import gc
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from accel import Accelerator, DataLoaderConfiguration, GradientAccumulationPlugin
from accel.commands.config import default_config_file, load_config_from_file, write_basic_config
from accel.commands.launch import launch_command, launch_command_parser
from accel.state import GradientState
from accel_state import CannotRun, release
from suite.toy_models import Mlp, RangeDataset
from torch import nn
from torch.optim import SGD
from torch.utils.data import DataLoader


def test_an_accelerator_tells_what_it_was_asked_for() -> None:
    """S172."""
    config = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=5)
    accelerator = Accelerator(cpu=True, dataloader_config=config, rng_types=["torch"], mixed_precision="bf16")
    assert accelerator.dataloader_config == config
    before, accelerator.dataloader_config = accelerator.dataloader_config, DataLoaderConfiguration(split_batches=True)
    assert (accelerator.split_batches, before.split_batches) == (True, config.split_batches)
    accelerator.dataloader_config = before
    accelerator.even_batches = False
    assert accelerator.dataloader_config == replace(config, even_batches=False)
    assert accelerator.use_seedable_sampler
    assert accelerator.use_stateful_dataloader
    assert not accelerator.non_blocking
    assert accelerator.rng_types == ["torch"]
    assert accelerator.native_amp
    assert accelerator.should_save_model
    assert not accelerator.multi_device
    assert not accelerator.fp8_enabled
    assert accelerator.deepspeed_plugin is None
    assert accelerator.autocast_handler.enabled
    assert accelerator.ddp_handler.broadcast_buffers
    assert accelerator.scaler_handler.init_scale == 65536
    assert accelerator.init_handler.timeout is None
    assert accelerator.profile_handler.activities is None
    assert accelerator.step_scheduler_with_optimizer


def test_what_was_prepared_is_in_lists() -> None:
    """S172: `_models` and the others are lists that grow."""
    accelerator = Accelerator(cpu=True)
    model = Mlp()
    ready = accelerator.prepare(model, SGD(model.parameters(), lr=0.1), DataLoader(RangeDataset(4)))
    assert accelerator._models == [ready[0]]
    assert list(map(id, accelerator._optimizers)) == [id(ready[1])]
    assert accelerator._dataloaders == [ready[2]]
    assert accelerator._schedulers == []
    accelerator._models.append(model)
    accelerator.free_memory()
    assert accelerator._models == []


def test_steps_of_a_window_are_counted_and_may_begin_anew() -> None:
    """S172."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    with accelerator.accumulate(accelerator.prepare(Mlp())):
        pass
    assert accelerator.step == 1
    accelerator.step = 0
    assert accelerator.step == 0
    with pytest.raises(ValueError, match=r"accelerator.step = 2: accumulate\(\) counts"):
        accelerator.step = 2


def test_a_map_over_several_devices_is_seen() -> None:
    """S172."""
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(2, 2)
    assert not accelerator.verify_device_map(model)
    model.hf_device_map = {"a": "cpu", "b": "cpu"}  # type: ignore[assignment] # as transformers does
    assert not accelerator.verify_device_map(model)
    model.hf_device_map = {"a": "cpu", "b": "disk"}  # type: ignore[assignment] # as transformers does
    assert accelerator.verify_device_map(nn.Sequential(model))


def test_the_gradient_state_shows_the_newest_accelerator() -> None:
    """S172."""
    plugin = GradientAccumulationPlugin(num_steps=4, sync_with_dataloader=False)
    accelerator = Accelerator(cpu=True, gradient_accumulation_plugin=plugin)
    state = GradientState()
    assert state.initialized
    assert state.num_steps == 4
    assert not state.sync_with_dataloader
    assert state.adjust_scheduler
    assert state.plugin_kwargs == {"num_steps": 4, "sync_with_dataloader": False}
    assert accelerator.gradient_state.plugin_kwargs == state.plugin_kwargs
    assert (state.in_dataloader, state.active_dataloader, state.remainder) == (False, None, -1)
    loader = accelerator.prepare(DataLoader(RangeDataset(2)))
    ends = []
    for _ in loader:
        assert state.active_dataloader is loader
        ends.append(state.end_of_dataloader)
    assert ends == [False, True]


def test_whether_gradients_are_shared_may_be_set_by_the_script() -> None:
    """S172: Trainer counts micro-batches by itself."""
    accelerator = Accelerator(cpu=True)
    accelerator.gradient_state._set_sync_gradients(False)
    assert not accelerator.sync_gradients
    assert not GradientState().sync_gradients
    GradientState()._set_sync_gradients(True)
    assert accelerator.sync_gradients


def test_there_is_no_gradient_state_without_an_accelerator() -> None:
    accelerator = Accelerator(cpu=True)
    del accelerator
    gc.collect()
    assert not GradientState().initialized
    with pytest.raises(RuntimeError, match="create an Accelerator first"):
        GradientState().sync_gradients  # noqa: B018
    with pytest.raises(ValueError, match="windows belong to an Accelerator"):
        GradientState(GradientAccumulationPlugin())


def test_the_gradient_state_of_a_run_ends_with_it() -> None:
    accelerator = Accelerator(cpu=True)
    assert GradientState().initialized
    release()
    assert not GradientState().initialized
    assert accelerator.num_processes == 1


def test_a_basic_config_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S172."""
    monkeypatch.setenv("ACCEL_HOME", str(tmp_path))
    written = write_basic_config("bf16")
    assert isinstance(written, Path)
    assert load_config_from_file(None).mixed_precision == "bf16"
    assert load_config_from_file(written).mixed_precision == "bf16"
    assert not write_basic_config("fp16"), "the file stays"
    assert default_config_file.startswith(str(tmp_path.parent)) or default_config_file.endswith("default_config.yaml")
    with pytest.raises(ValueError, match="mixed_precision='int3'"):
        write_basic_config("int3", tmp_path / "other.yaml")
    with pytest.raises(CannotRun, match="no such file"):
        load_config_from_file(tmp_path / "missing.yaml")


def test_a_config_with_mistakes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("mixed_precison: bf16\n")
    with pytest.raises(CannotRun, match="mixed_precison"):
        load_config_from_file(path)


def test_the_launcher_is_a_function(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """S172: programs read its options by argparse."""
    script = tmp_path / "say.py"
    script.write_text("import os, sys; print(os.environ.get('ACCEL_MIXED_PRECISION'), *sys.argv[1:])")
    line = ["--cpu", "--mixed_precision", "bf16", "--num-processes=2", str(script), "--lr", "1"]
    args = launch_command_parser().parse_args(line)
    assert (args.training_script, args.training_script_args, args.mixed_precision) == (str(script), line[-2:], "bf16")
    launch_command(args)
    assert capfd.readouterr().out.count("bf16 --lr 1") == 2
    assert sys.argv[0] != str(script)
