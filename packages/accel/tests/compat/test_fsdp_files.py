"""Files of sharded models, as libraries for Accelerate write and merge them; and parts of its launcher."""

import argparse
import os
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from accel import Accelerator
from accel_checkpoint import CheckpointError
from accel_testing import MakePool
from safetensors.torch import load_file
from suite.toy_models import Mlp
from torch import nn
from torch.optim import AdamW

utils = import_module("accel.utils")


def saves_and_loads(folder: str, ways: dict[str, bool]) -> list[Any]:
    accelerator = Accelerator(cpu=True, strategy="fsdp2")

    def made(seed: int) -> tuple[Any, Any]:
        model = Mlp(seed=seed)
        ready = accelerator.prepare(model, AdamW(model.parameters(), lr=0.1))
        accelerator.backward(ready[0](torch.ones(2, 8)).sum())
        ready[1].step()
        ready[1].zero_grad()
        return ready

    model, optimizer = made(0)
    other, other_optimizer = made(1)
    utils.save_fsdp_model(None, accelerator, model, folder, **ways)
    utils.save_fsdp_optimizer(None, accelerator, optimizer, model, folder, use_dcp=ways.get("use_dcp", True))
    accelerator.wait_for_everyone()
    utils.load_fsdp_model(None, accelerator, other, folder, **ways)
    utils.load_fsdp_optimizer(None, accelerator, other_optimizer, other, folder, **ways)
    for mine, loaded in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine.to_local(), loaded.to_local())
        first, second = optimizer.state[mine]["exp_avg"], other_optimizer.state[loaded]["exp_avg"]
        assert torch.equal(first.to_local(), second.to_local())
    return [parameter.full_tensor().tolist() for parameter in model.parameters()]


def test_sharded_models_are_written_read_and_merged(world: MakePool, tmp_path: Path) -> None:
    """S175."""
    whole, _ = world(2).run(saves_and_loads, str(tmp_path), {})
    written = utils.merge_fsdp_weights(tmp_path / "pytorch_model_fsdp_0", tmp_path / "merged")
    merged = load_file(written)
    assert [merged[name].tolist() for name, _ in Mlp().named_parameters()] == whole
    with pytest.raises(CheckpointError, match="is not a folder"):
        utils.merge_fsdp_weights(tmp_path / "nothing", tmp_path / "merged")


@pytest.mark.parametrize("ways", [{"use_dcp": False}, {"adapter_only": True}])
def test_ranks_share_folders_whatever_is_asked_of_the_files(
    ways: dict[str, bool], world: MakePool, tmp_path: Path
) -> None:
    """S175."""
    world(2).run(saves_and_loads, str(tmp_path), ways)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["optimizer_0", "pytorch_model_fsdp_0"]


def test_a_process_of_a_program_is_told_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "", "LOCAL_RANK": "", "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": ""}.items():
        monkeypatch.setenv(name, value)
    seen: list[Any] = []
    utils.PrepareForLaunch(lambda *given: seen.append((os.environ["RANK"], os.environ["WORLD_SIZE"], *given)))(2, "a")
    assert seen == [("2", "3", "a")]


def test_arguments_are_those_that_a_parser_knows() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--known", default=1)
    parser.add_argument("--left", default=2)
    assert vars(utils._filter_args(argparse.Namespace(known=5, other=6), parser)) == {"known": 5, "left": 2}


def test_the_largest_layers_are_found() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
    assert utils.calculate_maximum_sizes(model) == (132, (48, ["1.0", "1.1"]))
