"""Models whose weights are elsewhere, and training."""

from pathlib import Path

import pytest
import torch
from accel import Accelerator, cpu_offload, disk_offload, dispatch_model
from accel_checkpoint import CheckpointError
from accel_state.errors import CannotRun
from torch import nn


def make() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5))


def test_a_dispatched_model_is_not_trained(tmp_path: Path) -> None:
    """S145: prepare refuses it, and optimizers of its parameters, in words."""
    accelerator = Accelerator(cpu=True)
    for model in (
        cpu_offload(make()),
        disk_offload(make(), tmp_path / "a"),
        dispatch_model(make(), {"0": "cpu", "1": "disk"}, offload_dir=tmp_path / "b"),
    ):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(
            CannotRun, match=r"of its weights are offloaded and have no gradients; load it on one device"
        ):
            accelerator.prepare(model, optimizer)
        with pytest.raises(CannotRun, match="of its parameters are offloaded"):
            accelerator.prepare(optimizer)


def test_it_is_evaluated_and_saved(tmp_path: Path) -> None:
    """S144: a model in one place is trained as ever; one that is not is evaluated and saved."""
    accelerator = Accelerator(cpu=True)
    whole, x = make(), torch.ones(2, 3)
    assert accelerator.prepare(dispatch_model(make(), {"": "cpu"})) is not None
    model = accelerator.prepare_model(disk_offload(make(), tmp_path / "o"), evaluation_mode=True)
    with torch.no_grad():
        assert torch.equal(model(x), whole(x))
    assert all(torch.equal(accelerator.get_state_dict(model)[name], held) for name, held in whole.state_dict().items())
    accelerator.save_model(model, tmp_path / "saved")
    again = make()
    nn.init.zeros_(again[0].weight)  # type: ignore[arg-type]
    from accel import load_checkpoint_in_model

    load_checkpoint_in_model(again, tmp_path / "saved", strict=True)
    assert torch.equal(again(x), whole(x))


def test_a_checkpoint_has_the_numbers_and_is_not_read_into_it(tmp_path: Path) -> None:
    """S144, S145: what save_state writes of a dispatched model is what a whole one loads."""
    accelerator = Accelerator(cpu=True)
    accelerator.prepare_model(disk_offload(make(), tmp_path / "o"), evaluation_mode=True)
    accelerator.save_state(tmp_path / "state")
    with pytest.raises(CheckpointError, match="load_state_dict of a dispatched model"):
        accelerator.load_state(tmp_path / "state")
    other = Accelerator(cpu=True)
    again = other.prepare(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5)))
    other.load_state(tmp_path / "state")
    assert all(torch.equal(again.state_dict()[name], held) for name, held in make().state_dict().items())
